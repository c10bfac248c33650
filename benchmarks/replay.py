"""How fast ``kvfence prove replay`` reads: steps a second, with 1,000 attempts open at once and properties asked along.

The traces are those of a simulated run: one gateway, one prefill and one decode worker, whose decode passes take 32
sequences each. Prints a table; ``--json`` prints one JSON document instead. CPU seconds, not the clock on the wall.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

from kvfence.core.ids import AttemptId, RequestId, TenantId
from kvfence.protocol.admission import Capacity
from kvfence.protocol.events import Event
from kvfence.protocol.guards import Rules
from kvfence.protocol.step import Node, Step
from kvfence.prove.replay import replay
from kvfence.sim.process import Setup
from kvfence.sim.recording import Recording
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World

BATCH = 32
PAGE_SIZE = 16
PROMPT, ANSWER = 8 * PAGE_SIZE, 2 * PAGE_SIZE
BOUND = 20_000
"""Steps a second that replay must reach."""


class Watched(Recording):
    """Records, and keeps how many attempts were open at once."""

    open_max = 0

    def __call__(self, rules: Rules, node: Node, event: Event) -> Step:
        """Step and record."""
        result = super().__call__(rules, node, event)
        self.open_max = max(self.open_max, len(result.node.handoffs))
        return result


def record(folder: Path, num_open: int, num_requests: int) -> int:
    """Record a run; give how many attempts were open at once."""
    pages = num_open * (PROMPT + ANSWER + PAGE_SIZE) // PAGE_SIZE
    capacity = Capacity(PAGE_SIZE, PROMPT + ANSWER, pages, pages)
    setup = Setup(Rules.all(), capacity, batch_pages_max=8, chunk_pages=8, concurrency=num_open, checked=False)
    requests = [SimRequest(RequestId(f"r{n}"), TenantId("t"), PROMPT, ANSWER) for n in range(num_requests)]
    recording = Watched(folder)
    world = World(setup, requests, recording)
    world.around.some = _first  # type: ignore[method-assign]
    for number in itertools.count():
        if not world.advance():
            break
        if number % 1000 == 0:
            world.cluster.move_floors()
    recording.close()
    return recording.open_max


def _first(items: list[AttemptId]) -> list[AttemptId]:
    return items[:BATCH]


def main() -> None:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--open", type=int, default=1000, help="attempts open at once")
    parser.add_argument("--requests", type=int, default=2500, help="requests in all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_max = record(folder, given.open, given.requests)
        paths = sorted(folder.glob("*.ndjson"))
        num_bytes = sum(path.stat().st_size for path in paths)
        begin = time.process_time()
        found = replay(paths)
        seconds = time.process_time() - begin
    rate = found.num_steps / seconds
    document = {
        "verdict": found.verdict.value,
        "steps": found.num_steps,
        "attempts_open_max": open_max,
        "megabytes": round(num_bytes / 1e6, 1),
        "cpu_s": round(seconds, 2),
        "steps_per_cpu_s": round(rate),
        "bound": BOUND,
        "holds": rate >= BOUND,
    }
    if given.json:
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(f"{name.replace('_', ' '):<20}{value}" for name, value in document.items()))


if __name__ == "__main__":
    main()
