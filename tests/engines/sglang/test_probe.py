"""The probe against real SGLang pairs, which it knows by their URL alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RELEASE
from pair import Pair

pytestmark = pytest.mark.timeout(3600)

REQUESTS = int(os.environ.get("PROBE_REQUESTS", "200" if RELEASE == "0.5.19" else "60"))
"""The incident showed itself with the 80th."""


def probe(pair: Pair, out: Path) -> dict[str, object]:
    """Probe a pair's front door and give the report."""
    command = [sys.executable, "-m", "kvfence", "probe", "run", "--base-url", pair.url, "--yes", "--seed", "1"]
    command += ["--max-requests", str(REQUESTS), "--concurrency", "4", "--out", str(out)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1, 3), ended.stderr[-2000:]
    report: dict[str, object] = json.loads(out.read_bytes())
    return report


@pytest.mark.skipif(RELEASE != "0.5.19", reason="the incident's release")
def test_the_incident_is_found_by_url_alone(stock: Pair, tmp_path: Path) -> None:
    """0.5.19 with a prefill pool below the context is a leak, found from answers only."""
    assert probe(stock, tmp_path / "report.json")["verdict"] == "LEAK"


@pytest.mark.skipif(RELEASE == "0.5.19", reason="later releases refuse at prefill")
def test_a_release_that_refuses_is_no_leak_and_its_slow_refusal_is_said(stock: Pair, tmp_path: Path) -> None:
    """0.5.23 leaks nothing; that its clients wait minutes for a refusal is a finding."""
    report = probe(stock, tmp_path / "report.json")
    assert report["verdict"] != "LEAK"
    assert any(finding["detector"] == "slow-refusal" for finding in report["findings"])  # type: ignore[index,attr-defined]
