"""``kvfence incident --sim`` on the command line: one document, tables, a page, exit codes, light install."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.incident.test_production import SMALL

KEYS = {"leaked", "status_alarms", "marker_alarms", "text_markers", "oracle_leaks", "checks", "runs", "control"}


def test_json_is_one_document(run: Run) -> None:
    """All numbers are in one JSON document on stdout, and nothing else is."""
    outcome = run("incident", "--sim", "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report.keys() >= KEYS | {"memory_fraction_lowered", "seed", "seeds", "seconds"}
    assert report["leaked"] == {"small_unguarded": 27, "small_guarded": 0, "large_unguarded": 0, "large_guarded": 0}
    assert report["text_markers"] is None
    assert report["text_markers_why"]
    assert [set(check) for check in report["checks"]] == [{"name", "pass"}] * 7


def test_tables_and_page(run: Run, tmp_path: Path) -> None:
    """Tables go to stdout; the page is written where it is asked for."""
    outcome = run("incident", "--sim", "--seeds", "2", "--html", str(tmp_path / "page.html"))
    assert outcome.code == 0, outcome.err
    assert "small_unguarded" in outcome.out
    assert "seed 2" in outcome.out
    assert "Decode reads all 8 pages" in outcome.out
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_not_found_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that does not hold is told and ends with 1."""
    monkeypatch.setattr("kvfence.incident.findings.start_check_finds_it", lambda: False)
    outcome = run("incident", "--sim")
    assert outcome.code == 1
    assert "a check at start, pool >= context" in outcome.err


def test_a_page_that_cannot_be_written_is_told_before_the_runs(run: Run) -> None:
    """A folder that does not exist is wrong usage."""
    outcome = run("incident", "--sim", "--html", "no/such/folder/page.html")
    assert outcome.code == 2
    assert "no/such/folder" in outcome.err


def test_the_simulation_needs_no_extra() -> None:
    """`incident --sim` runs in a light install."""
    from tests.house.test_light_install import BLOCK

    code = BLOCK + "from kvfence.cli.main import main\nmain(['incident', '--sim', '--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["leaked"]["small_unguarded"] == 27


def test_the_incidents_own_scale(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON on stdout and a line a run on stderr; tables without --json; what does not go with it is refused."""
    monkeypatch.setattr("kvfence.incident.production.PRODUCTION", SMALL)
    outcome = run("incident", "--scale", "production", "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["leaked"]["as it was"] == 12
    assert report["ok"]
    assert "zero on release: 12 x 200, 0 leaked, 12 wrong" in outcome.err
    assert "each remedy stops it alone" in run("incident", "--scale", "production").out
    refused = run("incident", "--scale", "production", "--html", "page.html", "--seeds", "2")
    assert refused.code == 2
    assert "--html" in refused.err
