"""What the fence adds to one decode pass and to one page handed over, measured in one process without a model."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import compare
import step as moves
from msgspec import Struct

from kvfence.core.ids import Incarnation, PassId
from kvfence.core.tags import PageTag
from kvfence.kv.seal import seal_pages, verify_pages, write_head
from kvfence.kv.storage import PoolBuffer, pool_bytes
from kvfence.protocol.events import PassBegan, PassEnded
from kvfence.protocol.guards import Rules
from kvfence.protocol.turn import Turn
from kvfence.trace.recorder import Recorder, TraceFile

PAGES_EACH = 19
"""Pages of a sequence of 300 tokens."""


class PassCost(Struct, frozen=True):
    """One decode pass. Units: microseconds, medians; ``compare``: both comparisons (guard stamp-at-read);
    ``recorder``: what writing the trace adds to both steps."""

    batch: int
    compare_warm_us: float
    compare_cold_us: float
    began_us: float
    ended_us: float
    recorder_us: float

    @property
    def total_us(self) -> float:
        """All of it, with the comparisons cold and the trace on."""
        return self.compare_cold_us + self.began_us + self.ended_us + self.recorder_us


class HandOffCost(Struct, frozen=True):
    """Units: microseconds a page of the embedded model in bf16: seal (zero-tail, digest, stamp) at prefill, verify
    (stamp-at-adopt, digest-matches) at decode; ``ask_us``: one guard asked in ``step`` and its decision recorded."""

    seal_us: float
    verify_us: float
    ask_us: float


def measure_passes(batches: Sequence[int] = (1, 4, 16), repeats: int = 300) -> list[PassCost]:
    """Measure passes over these numbers of sequences."""
    compared = compare.measure([(batch, PAGES_EACH) for batch in batches])
    return [_measure_pass(batch, cost, repeats) for batch, cost in zip(batches, compared, strict=True)]


def _measure_pass(batch: int, compared: compare.Cost, repeats: int) -> PassCost:
    plain = _steps(batch, None, repeats)
    with tempfile.TemporaryDirectory() as folder:
        traced = _steps(batch, TraceFile(Path(folder) / "trace", 1 << 26), repeats)
    return PassCost(batch, compared.warm_us, compared.cold_us, *plain, max(0.0, sum(traced) - sum(plain)))


def _steps(batch: int, sink: TraceFile | None, repeats: int) -> tuple[float, float]:
    """Median microseconds of a pass's two steps; one sequence in 16 grows by a page."""
    node, rules, recorder = moves.running(batch), Rules.all(), Recorder(sink, time.monotonic_ns)
    attempts = tuple(node.handoffs)
    began, ended = [], []
    for number in range(1, repeats + 1):
        grow = tuple((a, 1) for i, a in enumerate(attempts) if (i + number) % 16 == 0)
        start = time.perf_counter_ns()
        node = recorder.step(rules, node, PassBegan(PassId(number), attempts, grow)).node
        middle = time.perf_counter_ns()
        node = recorder.step(rules, node, PassEnded(PassId(number))).node
        ended.append((time.perf_counter_ns() - middle) / 1e3)
        began.append((middle - start) / 1e3)
    recorder.close()
    return median(began), median(ended)


def measure_hand_off(num_pages: int = 16, repeats: int = 40) -> HandOffCost:
    """Measure what a hand-off costs for each of its pages."""
    layout = compare.record_layout()
    pool = PoolBuffer(bytearray(pool_bytes(layout, num_pages)), layout, num_pages)
    tags = [PageTag(Incarnation("a" * 32), 1, page) for page in range(num_pages)]
    num_tokens = num_pages * layout.page_size - 5
    write_head(pool, range(num_pages), tags)
    turn = Turn(Rules.all(), "decode")
    return HandOffCost(
        _median_us(lambda: seal_pages(pool, tags, num_tokens), repeats) / num_pages,
        _median_us(lambda: verify_pages(pool, list(range(num_pages)), tags, num_tokens), repeats) / num_pages,
        _median_us(lambda: [turn.ask("stamp-at-read", None, holds=True) for _ in range(100)], repeats) / 100,
    )


def _median_us(action: Callable[[], object], repeats: int) -> float:
    costs = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        action()
        costs.append((time.perf_counter_ns() - start) / 1e3)
    return median(costs)
