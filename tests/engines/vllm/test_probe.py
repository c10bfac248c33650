"""The probe's cases against real vLLM pairs: stock leaks in those that are known, guarded in none."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RELEASE
from pair import Pair, Sizes

pytestmark = pytest.mark.timeout(2400)

BAD = {"LEAK", "WRONG TEXT"}
KNOWN = ("stale-lease", "short-count", "forged-reference", "poisoned-prefix", "one-block-too-many")


def probe(pair: Pair, out: Path) -> dict[str, str]:
    """Try every case once, the one that may end decode last; give each case's answer."""
    command = [sys.executable, "-m", "kvfence", "probe", "handoff", "--engine", "vllm", "--all", "--allow-crash"]
    command += ["--prefill", pair.prefill, "--decode", pair.decode, "--lease-s", str(Sizes().lease_s)]
    command += ["--tries", "1", "--yes", "--seed", "7", "--out", str(out)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_bytes())
    return {each["case"]: each["answer"] for each in report["cases"]}


@pytest.mark.skipif(RELEASE != "0.32.0", reason="what other releases do was not looked at")
def test_a_stock_pair_is_bad_in_every_known_case(stock: Pair, tmp_path: Path) -> None:
    """Five cases answer with another tenant's text or a wrong one, and one ends the engine."""
    found = probe(stock, tmp_path / "report.json")
    assert {name: found[name] for name in KNOWN if found[name] not in BAD} == {}
    assert found["one-block-too-few"] == "CRASHED"


def test_a_guarded_pair_is_bad_in_none(guarded: Pair, tmp_path: Path) -> None:
    """Every case is refused or answered correctly, and decode goes on."""
    found = probe(guarded, tmp_path / "report.json")
    assert {name: answer for name, answer in found.items() if answer not in ("REFUSED", "CORRECT")} == {}
