"""What the two comparisons of a pass cost, independent of any model: heads spread through records of real size.

    python benchmarks/compare.py [--json]

Each size is (sequences x pages each) over records of 16 tokens of the embedded model in bf16. Only the first
4 KiB of a record are backed by memory here, so that sizes fit which a host could not hold; that leaves the cost of
a head what it is with small memory pages, one cache line and one address translation of its own. *Warm* repeats
the comparison at once; *cold* reads 96 MiB in between, as a model's pass does.
"""

import argparse
import gc
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import msgspec
import numpy as np
from msgspec import Struct

from kvfence.core.ids import Incarnation
from kvfence.core.layout import KVLayout, Segment
from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import pack_heads, write_head
from kvfence.kv.storage import PoolBuffer, available_bytes, pool_bytes

SIZES = ((16, 19), (64, 64), (256, 512), (256, 2048), (64, 10_645))
GOAL_US = 100.0
"""1 % of a step of 10 ms, for both comparisons together."""

_EVICT_BYTES = 96 << 20
_BACKED_BYTES = 12 << 10  # a head's own memory page, its translations, its table entries
_LAYERS = 30


class Cost(Struct, frozen=True):
    """Both comparisons of one pass, together. Units: medians and minima in microseconds."""

    sequences: int
    pages_each: int
    warm_us: float
    warm_min_us: float
    cold_us: float
    cold_min_us: float

    @property
    def pages(self) -> int:
        """Pages in the batch."""
        return self.sequences * self.pages_each


def record_layout() -> KVLayout:
    """Give the layout of the embedded model: 30 layers, 3 heads of 64, bf16, 16 tokens a page."""
    names = ("key", "value")
    return KVLayout(16, tuple(Segment(name, layer, (3, 64), "bfloat16") for layer in range(_LAYERS) for name in names))


def measure(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Cost]:
    """Measure both comparisons at each size that this machine's memory allows."""
    return [cost for size in sizes if (cost := _measure_size(*size)) is not None]


def largest_within(costs: Sequence[Cost], goal_us: float = GOAL_US) -> tuple[int, int]:
    """Give the pages, warm and cold, up to which both comparisons stay within the goal, interpolated by size."""
    return (
        _crossing([(cost.pages, cost.warm_us) for cost in costs], goal_us),
        _crossing([(cost.pages, cost.cold_us) for cost in costs], goal_us),
    )


def _measure_size(sequences: int, pages_each: int) -> Cost | None:
    num_pages = sequences * pages_each
    if num_pages * _BACKED_BYTES + _EVICT_BYTES > available_bytes():
        print(f"{sequences}x{pages_each}: not measured, too little memory", file=sys.stderr)
        return None
    fd = os.memfd_create("kvfence-compare")
    nbytes = pool_bytes(record_layout(), num_pages)
    os.ftruncate(fd, nbytes)
    buffer = mmap.mmap(fd, nbytes)
    os.close(fd)
    table = _fill(PoolBuffer(buffer, record_layout(), num_pages), sequences, pages_each)
    evict = np.ones(_EVICT_BYTES // 8, dtype=np.int64)
    repeats = max(7, min(301, 2_000_000 // num_pages))
    warm = _times(table, repeats, lambda: None)
    cold = _times(table, max(5, repeats // 10), evict.sum)
    del table
    gc.collect()
    buffer.close()
    return Cost(sequences, pages_each, float(np.median(warm)), min(warm), float(np.median(cold)), min(cold))


def _fill(pool: PoolBuffer, sequences: int, pages_each: int) -> BatchTable:
    """Give every sequence pages from all over the pool."""
    incarnation = Incarnation("a" * 32)
    order = np.random.default_rng(0).permutation(pool.num_pages)
    table = BatchTable(pool)
    for sequence in range(sequences):
        pages = order[sequence * pages_each : (sequence + 1) * pages_each]
        heads = pack_heads(incarnation, sequence + 1, pages)
        write_head(pool, pages, heads)
        table.add(sequence, pages, heads)
    return table


def _times(table: BatchTable, repeats: int, between: Callable[[], object]) -> list[float]:
    """Time a pair of comparisons, each after ``between``."""
    found = []
    for _ in range(repeats):
        total = 0
        for _ in range(2):
            between()
            began = perf_counter_ns()
            bad = table.compare()
            total += perf_counter_ns() - began
            if len(bad):
                raise RuntimeError("the benchmark's own heads do not match")
        found.append(total / 1000)
    return found[1:]


def _crossing(points: Sequence[tuple[int, float]], goal_us: float) -> int:
    below = (0, 0.0)
    for pages, cost in sorted(points):
        if cost > goal_us:
            share = (goal_us - below[1]) / (cost - below[1])
            return round(below[0] + share * (pages - below[0]))
        below = (pages, cost)
    return below[0]


def main() -> int:
    """Print the table and whether the goal is met at the smallest size; exit 1 if not."""
    parser = argparse.ArgumentParser(description="Cost of the head comparisons before and after a pass.")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    as_json = parser.parse_args().json
    costs = measure()
    warm, cold = largest_within(costs)
    if as_json:
        print(msgspec.json.encode({"costs": costs, "pages_within_goal": {"warm": warm, "cold": cold}}).decode())
    else:
        print(
            f"{'batch':>12} {'pages':>8} {'warm us':>10} {'(min)':>10} {'cold us':>10} {'(min)':>10}   both comparisons"
        )
        for cost in costs:
            name = f"{cost.sequences}x{cost.pages_each}"
            numbers = (cost.warm_us, cost.warm_min_us, cost.cold_us, cost.cold_min_us)
            print(f"{name:>12} {cost.pages:>8} " + " ".join(f"{number:>10.1f}" for number in numbers))
        print(f"1 % of a 10 ms step ({GOAL_US:.0f} us) holds about {warm} pages warm, {cold} cold")
    return 0 if costs and costs[0].warm_us <= GOAL_US else 1


if __name__ == "__main__":
    sys.exit(main())
