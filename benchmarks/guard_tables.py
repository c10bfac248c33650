"""What the SGLang guard's look at a pass's tables costs, independent of any model.

    python benchmarks/guard_tables.py [--json]

Each size is (sequences x pages each). *Steady* is a decode pass in which every sequence has one page more: what is new,
and the bounded sweep. *Whole* is a pass after a page that stands in a table was granted or given back: every page.
*After* is the question before a pass's tokens leave when nothing was. Medians of this thread's CPU time; goal: 1 % of
a step of 10 ms.
"""

import argparse
import sys
from collections.abc import Callable
from time import thread_time_ns

import msgspec
import numpy as np
from compare import GOAL_US, SIZES
from msgspec import Struct

from kvfence.guard.sglang.serials import Serials
from kvfence.guard.sglang.tables import Batch, Tables

STEADY = 60
WHOLE = 15


class Cost(Struct, frozen=True):
    """One size. Units: medians in microseconds."""

    sequences: int
    pages_each: int
    steady_us: float
    whole_us: float
    after_us: float


def measure(sequences: int, pages_each: int) -> Cost:
    """Measure one size; page numbers are spread over the pool as they are after a day."""
    width = pages_each + STEADY + 1
    pages = np.random.default_rng(1).permutation(sequences * width) + 1
    serials = Serials(sequences * width + 2)
    serials.grant(pages)
    slots = pages.reshape(sequences, width).astype(np.int32)
    tables = Tables(serials, slots, 1, may_change=False)
    names, rows = [f"request-{row}" for row in range(sequences)], np.arange(sequences)

    def batch(grown: int) -> Batch:
        return Batch(names, rows, np.full(sequences, pages_each + grown))

    tables.look(batch(0))
    batches = iter([batch(grown) for grown in range(1, STEADY + 1)])
    steady = median_us(lambda: tables.look(next(batches)), STEADY)
    last = batch(STEADY)
    after = median_us(lambda: tables.look_again(last), STEADY)

    def alarmed() -> None:
        serials.alarms += 1
        tables.look(last)

    return Cost(sequences, pages_each, steady, median_us(alarmed, WHOLE), after)


def median_us(call: Callable[[], object], times: int) -> float:
    """Give the median of some calls."""
    took = []
    for _ in range(times):
        start = thread_time_ns()
        call()
        took.append((thread_time_ns() - start) / 1000)
    return round(float(np.median(took)), 1)


def main() -> None:
    """Measure all sizes and say which meet the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    costs = [measure(*size) for size in SIZES]
    if parser.parse_args().json:
        sys.stdout.write(msgspec.json.encode(costs).decode() + "\n")
        return
    for cost in costs:
        word = "within" if cost.steady_us <= GOAL_US else "beyond"
        sys.stdout.write(
            f"{cost.sequences:>4} x {cost.pages_each:<6} steady {cost.steady_us:>8.1f} us ({word} {GOAL_US:.0f}), "
            f"whole {cost.whole_us:>9.1f} us, after {cost.after_us:>6.1f} us\n"
        )


if __name__ == "__main__":
    main()
