"""The whole incident on the real engine and the embedded model: ``make test-incident``, three seeds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.incident, pytest.mark.embedded, pytest.mark.timeout(1800)]


def test_three_seeds_show_everything(tmp_path: Path) -> None:
    """In every seed 27 leaks, all found by markers, at least 20 readable; none in any other run but the lowered one."""
    command = [str(Path(sys.executable).with_name("kvfence")), "incident", "--seeds", "3", "--json"]
    command += ["--html", str(tmp_path / "incident.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert done.returncode == 0
    for seed in report["seeds"]:
        leaked, alarms = seed["leaked"], seed["marker_alarms"]
        assert {name for name, count in leaked.items() if count} == {"small_unguarded", "memory_fraction_lowered"}
        assert leaked["small_unguarded"] == leaked["memory_fraction_lowered"] == alarms["small_unguarded"] == 27
        assert seed["text_markers"] >= 20
    assert "<mark>" in (tmp_path / "incident.html").read_text(encoding="utf-8")
