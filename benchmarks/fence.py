"""What the fence costs: in a pass, in a whole server with and without it, and at sizes this host cannot serve.

    python benchmarks/fence.py [--json] [--quick]

1. Microseconds of each guard and step of one decode pass, at 1, 4 and 16 sequences.
2. A server with its fence and without (no comparison, no digest, no zeroed tail; the protocol's steps are in both), at
   1, 4 and 16 concurrent requests: ratios over interleaved pairs, median with a 95 % percentile-bootstrap interval.
   Missed only where the whole interval lies below 0.99. CPU seconds of the workers stand beside, unjudged.
3. Both head comparisons of a pass at large sizes, independent of any model. Goal: 100 us together, 1 % of a step of
   10 ms; where it is passed, the size is said.

The last line is the headline. Exit 1 on a miss. ``--quick`` takes a toy model, whose passes are so short that its
ratios are shown and not judged.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from pathlib import Path

import compare
import msgspec
from fencing.server import Level, compare_in_turn
from fencing.steps import HandOffCost, PassCost, measure_hand_off, measure_passes
from msgspec import Struct

RATIO_GOAL = 0.99
PAIRS = 30
BUDGET_S = 300.0
QUICK_BUDGET_S = 20.0
QUICK_SIZES = ((16, 19), (64, 64))


class Machine(Struct, frozen=True):
    """Where it was measured. Units: load averages of one minute, before and after."""

    cpu: str
    cores: int
    python: str
    load_before: float
    load_after: float


class Report(Struct, frozen=True):
    """Everything, and what it comes to."""

    machine: Machine
    model: str
    passes: list[PassCost]
    hand_off: HandOffCost
    servers: list[Level]
    sizes: list[compare.Cost]
    pages_within_goal: tuple[int, int]
    missed: list[str]
    headline: str


def cpu_name() -> str:
    """Give the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def find_model(quick: bool, folder: Path) -> Path:
    """Give the embedded model, or a toy."""
    if quick:
        from kvfence.models.toy import write_toy_checkpoint

        return write_toy_checkpoint(folder / "toy")
    from kvfence.models.bundled import embedded_model

    return embedded_model(lambda text, *_: print(text, file=sys.stderr))


def measure(*, quick: bool, pairs: int) -> Report:
    """Measure all three parts."""
    load_before = os.getloadavg()[0]
    passes, hand_off = measure_passes(), measure_hand_off()
    with tempfile.TemporaryDirectory() as folder:
        model = find_model(quick, Path(folder))
        servers = asyncio.run(compare_in_turn(model, pairs, QUICK_BUDGET_S if quick else BUDGET_S))
    sizes = compare.measure(QUICK_SIZES if quick else compare.SIZES)
    within = compare.largest_within(sizes)
    machine = Machine(cpu_name(), os.cpu_count() or 1, platform.python_version(), load_before, os.getloadavg()[0])
    missed = find_misses([] if quick else servers, sizes)
    headline = say_headline(servers, sizes, within, missed)
    return Report(machine, model.name, passes, hand_off, servers, sizes, within, missed, headline)


def find_misses(servers: list[Level], sizes: list[compare.Cost]) -> list[str]:
    """Name the goals that are missed beyond doubt."""
    missed = []
    for level in servers:
        for name, ratio in (("throughput", level.throughput), ("inter-token", level.inter_token)):
            if ratio.high < RATIO_GOAL:
                missed.append(f"{name} at {level.concurrency}")
    if sizes and sizes[0].warm_us > compare.GOAL_US:
        missed.append(f"comparisons of {sizes[0].sequences}x{sizes[0].pages_each}")
    return missed


def say_headline(servers: list[Level], sizes: list[compare.Cost], within: tuple[int, int], missed: list[str]) -> str:
    """Say it in one line."""
    ratios = ", ".join(f"{s.throughput.median:.3f}/{s.inter_token.median:.3f} at {s.concurrency}" for s in servers)
    verdict = "MISSED: " + ", ".join(missed) if missed else "met"
    return (
        f"fence {verdict}: throughput/inter-token ratio {ratios}; both comparisons {sizes[0].warm_us:.1f} us warm at "
        f"{sizes[0].sequences}x{sizes[0].pages_each}, 1 % of a 10 ms step passed at {within[0]} pages "
        f"({within[1]} cold)"
    )


def show(report: Report) -> None:
    """Print the tables, the headline last."""
    machine = report.machine
    facts = f"{machine.cpu}, {machine.cores} cores, Python {machine.python}, {report.model}"
    print(f"{facts}; load {machine.load_before:.1f} before, {machine.load_after:.1f} after")
    print("\nus of one decode pass   compare x2 warm      cold   PassBegan   PassEnded   trace adds")
    for cost in report.passes:
        numbers = (cost.compare_warm_us, cost.compare_cold_us, cost.began_us, cost.ended_us, cost.recorder_us)
        print(
            f"{cost.batch:>14} x 19 pages "
            + "".join(f"{n:>{w}.1f}" for n, w in zip(numbers, (15, 10, 12, 12, 13), strict=True))
        )
    each = report.hand_off
    print(
        f"us a page handed over: seal {each.seal_us:.1f} (zero-tail, digest), verify {each.verify_us:.1f} "
        f"(stamp-at-adopt, digest-matches); one guard asked in step: {each.ask_us:.2f}"
    )
    print(
        "\nconcurrent  pairs  tokens  tokens/s  inter-token ms  throughput ratio      inter-token ratio     CPU ratio"
    )
    for level in report.servers:
        intervals = (level.throughput, level.inter_token, level.cpu)
        ratios = "  ".join(f"{r.median:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in intervals)
        print(
            f"{level.concurrency:>10}  {level.pairs:>5}  {level.num_new:>6}  {level.tokens_per_s:>8.1f}  "
            f"{level.inter_token_ms:>14.2f}  {ratios}"
        )
    print("\nboth comparisons     pages    warm us    cold us   of a 10 ms step")
    for size in report.sizes:
        name = f"{size.sequences}x{size.pages_each}"
        print(f"{name:>16} {size.pages:>9} {size.warm_us:>10.1f} {size.cold_us:>10.1f} {size.warm_us / 100:>10.2f} %")
    print(f"\n{report.headline}")


def main() -> int:
    """Measure, show, and exit 1 on a miss."""
    parser = argparse.ArgumentParser(description="What the fence costs.")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the tables")
    parser.add_argument("--quick", action="store_true", help="a toy model and small sizes; nothing is judged by ratios")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="interleaved pairs at each concurrency")
    given = parser.parse_args()
    report = measure(quick=given.quick, pairs=given.pairs)
    if given.json:
        print(msgspec.json.encode(report).decode())
    else:
        show(report)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
