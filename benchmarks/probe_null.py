"""How often the probe's detectors accuse sound endpoints: many simulated ones, of every temper the tests know.

``python benchmarks/probe_null.py --records 2000``: prints how many were called LEAK and SUSPECT, and below which rate
that lies at 95 %. Nothing is sent; about a quarter of a second of CPU a record.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from kvfence.probe.chance import SUSPECT_CHANCE, rate_below
from kvfence.probe.verdict import Verdict, judge
from tests.unit.probe.endpoints import record
from tests.unit.probe.test_detectors import TEMPERS


def main() -> int:
    """Judge so many sound records; fail where one is called LEAK."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=1000)
    args = parser.parse_args()
    verdicts: Counter[str] = Counter()
    said: Counter[str] = Counter()
    tempers = list(TEMPERS.items())
    for number in range(args.records):
        name, temper = tempers[number % len(tempers)]
        told = judge(record(args.first_seed + number, temper, rungs=30))
        verdicts[str(told.verdict)] += 1
        for finding in told.findings:
            said[f"{finding.severity} {finding.detector}, {name}"] += 1
    for verdict in Verdict:
        print(f"{verdict}: {verdicts[str(verdict)]}")
    for what, count in said.most_common():
        print(f"  {what}: {count}")
    print(
        f"none in {args.records} lies below {rate_below(0, args.records, 0.05):.2e} at 95 %; allowed: {SUSPECT_CHANCE}"
    )
    return int(verdicts[str(Verdict.LEAK)] > 0)


if __name__ == "__main__":
    sys.exit(main())
