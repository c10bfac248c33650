"""The post-mortem's case in a log of ten million requests: made, judged, and compared with what was planted.

    make bench BENCH=scope_incident ARGS="--rows 10000000 --format parquet --prober ladder"

Making and judging run in processes of their own, by the command line. Exits 1 if a count is not the planted one, if
the prober is not named, or if anybody else is.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROBER = "acct-7d20c4e1"
NAMED_FROM = 0.01


def main() -> None:
    """Make, judge, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--format", choices=("parquet", "jsonl", "csv"), default="parquet")
    parser.add_argument("--prober", choices=("none", "ladder", "repeat", "burst"), default="ladder")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / f"log.{options.format}"
        sizes = ("--requests", str(options.rows), "--seed", str(options.seed), "--prober", options.prober)
        made = json.loads(timed("made", "scope", "synth", *sizes, "--out", str(log), "--json"))
        print(f"{log.stat().st_size / 1e6:,.0f} MB, {log.stat().st_size / options.rows:.0f} bytes a request")
        report = json.loads(timed("judged", *made["report"][1:], "--json", "--names"))
    found = {name: report[name] for name in made["expected"]}
    named = [each["account"] for each in report["behaviour"]["tested"] if is_named(each)]
    print(f"planted {made['expected']}, found {found}; named: {named}; load {os.getloadavg()[0]:.1f}")
    right = found == made["expected"] and named == ([] if options.prober == "none" else [PROBER])
    sys.exit(0 if right else 1)


def is_named(conduct: dict[str, list[dict[str, float | None]]]) -> bool:
    """Tell whether a test found an account's conduct unlike the others'."""
    return any(test["adjusted"] is not None and test["adjusted"] <= NAMED_FROM for test in conduct["tests"])


def timed(what: str, *arguments: str) -> bytes:
    """Run the command line and say what it took; both exit codes of a report that could be made are right."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "kvfence", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what}: {wall:.1f} s, {cpu:.1f} s of CPU time, at most {after.ru_maxrss / 1024:,.0f} MiB")
    if done.returncode not in (0, 1, 3):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
