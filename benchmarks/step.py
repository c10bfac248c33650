"""What one protocol move costs: events per second and microseconds a move, 100,000 pages, by live attempts.

Prints a table; ``--json`` prints one JSON document instead.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from statistics import median

from kvfence.core.ids import AttemptId, Incarnation, PassId
from kvfence.core.manifest import Manifest
from kvfence.protocol.admission import Capacity
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import Event, PassBegan, PassEnded, PeerUp, Received, Verified
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import Cancel, Closed, Envelope, Message, Offer, Sent
from kvfence.protocol.node import Lives
from kvfence.protocol.step import step
from kvfence.protocol.transitions import Fence

NUM_PAGES = 100_000
PAGE_SIZE = 16
BATCH = 64
LIVE = (16, 1_000, 10_000)
GATEWAY, PREFILL, DECODE = (Incarnation(digit * 32) for digit in "123")
RULES = Rules.all()
DEADLINE_NS = 600 * 10**9


def envelope(sender: Incarnation, message: Message) -> Received:
    """A message that arrives at decode."""
    return Received(Envelope(sender, DECODE, message))


def feed(node: DecodeNode, event: Event) -> DecodeNode:
    """One step."""
    after = step(RULES, node, event).node
    if not isinstance(after, DecodeNode):
        raise TypeError("a decode node stays one")
    return after


def hand_off(node: DecodeNode, attempt: AttemptId, num_tokens: int) -> list[Event]:
    """The events from offer to adoption."""
    offer = Offer(attempt, PREFILL, num_tokens, 64, DEADLINE_NS)
    granted = feed(node, envelope(GATEWAY, offer)).handoffs[attempt].remote
    if granted is None:
        raise ValueError("the pool is too small for this benchmark")
    manifest = Manifest(num_tokens, PREFILL, 1, granted.pages, node.layout)
    sent = envelope(PREFILL, Sent(attempt, granted.serial, manifest))
    return [envelope(GATEWAY, offer), sent, Verified(attempt, (), digests_match=True)]


def running(num_live: int) -> DecodeNode:
    """A node with this many running sequences."""
    capacity = Capacity(PAGE_SIZE, 1 << 20, NUM_PAGES, NUM_PAGES)
    node = DecodeNode(Lives(DECODE), capacity, "layout", Fence.PEER_EXIT, new_pool(NUM_PAGES))
    node = feed(feed(node, PeerUp(GATEWAY, writes=False)), PeerUp(PREFILL, writes=True))
    for number in range(1, num_live + 1):
        for event in hand_off(node, AttemptId(GATEWAY, number), 4 * PAGE_SIZE):
            node = feed(node, event)
    return node


def timed(node: DecodeNode, events: list[Event]) -> list[float]:
    """Microseconds of each event in turn."""
    costs = []
    for event in events:
        begin = time.perf_counter_ns()
        node = feed(node, event)
        costs.append((time.perf_counter_ns() - begin) / 1e3)
    return costs


def course(node: DecodeNode, number: int) -> list[Event]:
    """One hand-off, one pass over a batch that grows, and the end of one sequence."""
    attempt = AttemptId(GATEWAY, 10**6 + number)
    oldest = tuple(list(node.handoffs)[:BATCH])
    pass_id = PassId(1)
    grow = tuple((a, 1) for a in oldest[: max(1, len(oldest) // PAGE_SIZE)])
    ends: list[Event] = [envelope(GATEWAY, Cancel(attempt)), envelope(GATEWAY, Closed(attempt))]
    return [*hand_off(node, attempt, 16 * PAGE_SIZE), PassBegan(pass_id, oldest, grow), PassEnded(pass_id), *ends]


MOVES = ("offer, grant", "sent", "verified, adopt", "pass began", "pass ended", "cancel, release", "closed")


def measure(num_live: int, repeats: int) -> dict[str, float]:
    """Median microseconds of each move."""
    node = running(num_live)
    gc.collect()
    costs = [timed(node, course(node, number)) for number in range(repeats)]
    return {name: median(row[i] for row in costs) for i, name in enumerate(MOVES)}


def events_per_second(costs: dict[str, float]) -> float:
    """Over one course."""
    return len(costs) / (sum(costs.values()) / 1e6)


def show(results: dict[int, dict[str, float]], out: Callable[[str], None]) -> None:
    """Print the table; the headline last."""
    out(f"microseconds a move, median; {NUM_PAGES:,} pages; passes over {BATCH} sequences\n")
    out("live attempts".ljust(20) + "".join(f"{live:>12,}" for live in results))
    for name in MOVES:
        out(name.ljust(20) + "".join(f"{costs[name]:>12.1f}" for costs in results.values()))
    out("events per second".ljust(20) + "".join(f"{events_per_second(c):>12,.0f}" for c in results.values()))
    worst = max(max(costs.values()) for costs in results.values())
    out(f"\nworst move: {worst:.0f} us at {max(results):,} live attempts")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--repeats", type=int, default=200, help="courses measured at each size")
    given = parser.parse_args()
    results = {live: measure(live, given.repeats) for live in LIVE}
    if given.json:
        document = {"num_pages": NUM_PAGES, "batch": BATCH, "us": results}
        document["events_per_s"] = {live: round(events_per_second(costs)) for live, costs in results.items()}
        print(json.dumps(document, indent=2))
    else:
        show(results, print)


if __name__ == "__main__":
    main()
