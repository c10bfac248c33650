"""``kvfence prove replay``: exit codes, streams and what a person reads."""

import json
from pathlib import Path

import pytest

from kvfence.protocol.guards import Rules
from tests.recorded import record_seed
from tests.unit.cli.conftest import Run
from tests.unit.prove.test_replay import HONEST


@pytest.mark.parametrize(
    ("seed", "away", "code", "verdict"),
    [(0, (), 0, "conforming"), (16, (), 1, "not allowed"), (1, ("batch-bound",), 1, "property violated")],
)
def test_a_verdict_is_an_exit_code(
    run: Run, tmp_path: Path, seed: int, away: tuple[str, ...], code: int, verdict: str
) -> None:
    """0 where all conform, 1 where something does not; one JSON document on stdout, progress on stderr."""
    faults = {"faults": HONEST} if seed != 16 else {}
    record_seed(tmp_path, seed, Rules.without(*away) if away else Rules.all(), **faults)  # type: ignore[arg-type]
    outcome = run("prove", "replay", str(tmp_path), "--json")
    assert outcome.code == code
    document = json.loads(outcome.out)
    assert document["verdict"] == verdict
    assert document["schema"] == "kvfence-replay/1"
    assert "reading" in outcome.err
    assert run("prove", "replay", str(tmp_path)).code == code


def test_what_cannot_be_told_is_three(run: Run, tmp_path: Path) -> None:
    """A trace that was cut is neither good nor bad."""
    path = record_seed(tmp_path, 0)[0]
    path.write_bytes(path.read_bytes()[:-40])
    outcome = run("prove", "replay", str(path))
    assert outcome.code == 3
    assert "truncated" in outcome.out
    assert "UNKNOWN" in outcome.out


def test_what_was_allowed_is_shown(run: Run, tmp_path: Path) -> None:
    """The first step that is not allowed, what stands there, and what would have been right."""
    record_seed(tmp_path, 16)
    out = run("prove", "replay", str(tmp_path)).out
    assert "does not show as sent" in out
    assert "What the guards answered" in out
    assert "say nothing of them" in out


def test_a_folder_without_traces_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    """Exit 2, and what to give instead."""
    outcome = run("prove", "replay", str(tmp_path))
    assert outcome.code == 2
    assert "no trace in this folder" in outcome.err
    assert run("prove", "replay", str(tmp_path / "none.ndjson")).code == 2
