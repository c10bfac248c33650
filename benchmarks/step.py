"""What one protocol move costs: events per second and microseconds a move, 100,000 pages, by live attempts.

At decode, and at prefill with as many prompts kept for re-use as the bound allows, each new one sharing four pages.

Prints a table; ``--json`` prints one JSON document instead.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from kvfence.core.ids import AttemptId, BatchId, Incarnation, PassId
from kvfence.core.limits import Limits
from kvfence.core.manifest import Manifest
from kvfence.protocol.admission import Capacity
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    BatchEnded,
    Event,
    PagesSealed,
    PassBegan,
    PassEnded,
    PeerUp,
    Received,
    Verified,
)
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import (
    Cancel,
    Closed,
    Commit,
    Dispatch,
    EndReason,
    Envelope,
    Grant,
    Message,
    Offer,
    Sent,
)
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import step
from kvfence.protocol.transitions import Fence

NUM_PAGES = 100_000
PAGE_SIZE = 16
BATCH = 64
LIVE = (16, 1_000, 10_000)
CACHED_LOTS = Limits().cached_lots_max
GATEWAY, PREFILL, DECODE = (Incarnation(digit * 32) for digit in "123")
RULES = Rules.all()
DEADLINE_NS = 600 * 10**9


N = TypeVar("N", DecodeNode, PrefillNode)


def envelope(sender: Incarnation, message: Message) -> Received:
    """A message that arrives at decode."""
    return Received(Envelope(sender, DECODE, message))


def feed(node: N, event: Event) -> N:
    """One step."""
    after = step(RULES, node, event).node
    if type(after) is not type(node):
        raise TypeError("a node stays what it is")
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


def timed(node: N, events: list[Event]) -> list[float]:
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


# ---- prefill


def dispatched(number: int, num_tokens: int, found: tuple[tuple[int, int], ...] = ()) -> Received:
    """A prompt arrives at prefill, with what the driver found of it."""
    pages = tuple(range(num_tokens // PAGE_SIZE))
    attempt = AttemptId(GATEWAY, number)
    message = Dispatch(attempt, DECODE, Grant(attempt, number, pages, "layout"), num_tokens, DEADLINE_NS, "salt")
    return Received(Envelope(GATEWAY, PREFILL, message), found=found)


def hand_over(number: int, num_pages: int, last_batch: int) -> list[Event]:
    """The events from a whole prompt's pass to decode's commit, for a prompt whose first pages are shared or not."""
    attempt, pass_id = AttemptId(GATEWAY, number), PassId(number)
    ended = BatchEnded(attempt, BatchId(last_batch), success=True, source_quiet=True)
    return [
        PassBegan(pass_id, (attempt,)),
        PassEnded(pass_id, finished=((attempt, EndReason.STOP),)),
        PagesSealed(attempt, num_pages, tails_zeroed=True, digest="d"),
        ended,
        Received(Envelope(DECODE, PREFILL, Commit(attempt))),
    ]


def computing(num_live: int) -> PrefillNode:
    """A node that computes this many prompts and keeps as many others as it may."""
    capacity = Capacity(PAGE_SIZE, 1 << 20, NUM_PAGES, NUM_PAGES)
    node = PrefillNode(Lives(PREFILL), capacity, "layout", new_pool(NUM_PAGES), cached_lots_max=CACHED_LOTS)
    node = feed(feed(node, PeerUp(GATEWAY, writes=False)), PeerUp(DECODE, writes=False))
    for number in range(1, CACHED_LOTS + 1):
        for event in [dispatched(number, 4 * PAGE_SIZE), *hand_over(number, 4, number)]:
            node = feed(node, event)
    for number in range(num_live):
        node = feed(node, dispatched(CACHED_LOTS + 1 + number, 4 * PAGE_SIZE))
    return node


def prefill_course(number: int) -> list[Event]:
    """One prompt of 8 pages, of which 4 are shared and posted at once, from dispatch to commit."""
    shared, own = CACHED_LOTS + 1, CACHED_LOTS + 2
    posted = BatchEnded(AttemptId(GATEWAY, number), BatchId(shared), success=True, source_quiet=True)
    events = hand_over(number, 8, own)
    return [dispatched(number, 8 * PAGE_SIZE, ((number % CACHED_LOTS + 1, 4),)), posted, *events]


PREFILL_MOVES = ("dispatch, share", "batch ended", "pass began", "pass ended", "sealed, post", "sent", "commit, keep")


def measure_prefill(num_live: int, repeats: int) -> dict[str, float]:
    """Median microseconds of each move."""
    node = computing(num_live)
    gc.collect()
    costs = [timed(node, prefill_course(10**6 + number)) for number in range(repeats)]
    return {name: median(row[i] for row in costs) for i, name in enumerate(PREFILL_MOVES)}


def events_per_second(costs: dict[str, float]) -> float:
    """Over one course."""
    return len(costs) / (sum(costs.values()) / 1e6)


def show(title: str, results: dict[int, dict[str, float]], out: Callable[[str], None]) -> None:
    """Print a table; the headline last."""
    out(f"{title}: microseconds a move, median; {NUM_PAGES:,} pages\n")
    out("live attempts".ljust(20) + "".join(f"{live:>12,}" for live in results))
    for name in next(iter(results.values())):
        out(name.ljust(20) + "".join(f"{costs[name]:>12.1f}" for costs in results.values()))
    out("events per second".ljust(20) + "".join(f"{events_per_second(c):>12,.0f}" for c in results.values()))
    worst = max(max(costs.values()) for costs in results.values())
    out(f"\nworst move: {worst:.0f} us at up to {max(results):,} live attempts\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--repeats", type=int, default=200, help="courses measured at each size")
    given = parser.parse_args()
    results = {live: measure(live, given.repeats) for live in LIVE}
    prefill = {live: measure_prefill(live, given.repeats) for live in LIVE}
    if given.json:
        document = {"num_pages": NUM_PAGES, "batch": BATCH, "us": results, "prefill_us": prefill}
        document["events_per_s"] = {live: round(events_per_second(costs)) for live, costs in results.items()}
        print(json.dumps(document, indent=2))
    else:
        show(f"decode, passes over {BATCH} sequences", results, print)
        show(f"prefill, {CACHED_LOTS:,} prompts kept", prefill, print)


if __name__ == "__main__":
    main()
