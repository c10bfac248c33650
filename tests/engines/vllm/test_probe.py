"""The probe against real vLLM: a stock pair leaks in the cases that are known, a guarded one in none, one server alone
is no leak.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RELEASE
from pair import Pair, Sizes

pytestmark = pytest.mark.timeout(2400)

BAD = {"LEAK", "WRONG TEXT"}
REQUESTS = os.environ.get("PROBE_REQUESTS", "60")
KNOWN = ("stale-lease", "short-count", "forged-reference", "poisoned-prefix", "one-block-too-many")


def probe(out: Path, *arguments: str) -> dict[str, Any]:
    """Run one probe to its end and give its report."""
    command = [sys.executable, "-m", "kvfence", "probe", *arguments, "--yes", "--seed", "7", "--out", str(out)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1, 3), ended.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_bytes())
    return report


def cases(pair: Pair, out: Path) -> dict[str, str]:
    """Try every case once, the one that may end decode last; give each case's answer."""
    given = ("--engine", "vllm", "--all", "--allow-crash", "--tries", "1", "--lease-s", str(Sizes().lease_s))
    report = probe(out, "handoff", *given, "--prefill", pair.prefill, "--decode", pair.decode)
    return {each["case"]: each["answer"] for each in report["cases"]}


def test_one_server_alone_is_no_leak(stock: Pair, tmp_path: Path) -> None:
    """Decode asked without a hand-off is a sound server, with a prefix cache that its callers share: no alarm."""
    report = probe(tmp_path / "report.json", "run", "--base-url", f"{stock.decode}/v1", "--max-requests", REQUESTS)
    assert report["verdict"] not in ("LEAK", "SUSPECT"), [finding["detector"] for finding in report["findings"]]


@pytest.mark.skipif(RELEASE != "0.32.0", reason="what other releases do was not looked at")
def test_a_stock_pair_is_bad_in_every_known_case(stock: Pair, tmp_path: Path) -> None:
    """Five cases answer with another tenant's text or a wrong one, and one ends the engine."""
    found = cases(stock, tmp_path / "report.json")
    assert {name: found[name] for name in KNOWN if found[name] not in BAD} == {}
    assert found["one-block-too-few"] == "CRASHED"


def test_a_guarded_pair_is_bad_in_none(guarded: Pair, tmp_path: Path) -> None:
    """Every case is refused or answered correctly, and decode goes on."""
    found = cases(guarded, tmp_path / "report.json")
    assert {name: answer for name, answer in found.items() if answer not in ("REFUSED", "CORRECT")} == {}
