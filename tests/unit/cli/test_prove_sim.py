"""``kvfence prove sim``: exit codes, one document, what a failing seed is told as."""

import json
from pathlib import Path

import pytest

from kvfence.sim import judge
from tests.unit.cli.conftest import Run


def test_with_every_guard_nothing_breaks(run: Run) -> None:
    """0, and one document with rates, faults, guards and what the runs say nothing of."""
    outcome = run("prove", "sim", "--runs", "4", "--json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["broken"] == {}
    assert document["runs"] == 4
    assert document["runs_per_cpu_s"] > 0
    assert document["faults"]
    assert any(guard["refused"] for guard in document["guards"])
    assert document["sometimes_never_reached"]


def test_a_failing_seed_is_found_and_made_short(run: Run) -> None:
    """1, and a story of few steps and one request that ends where the property breaks."""
    arguments = ("prove", "sim", "--mutant", "without batch-bound", "--seeds", "0:2", "--shrink", "--symbols", "--json")
    outcome = run(*arguments)
    assert outcome.code == 1
    document = json.loads(outcome.out)
    shrunk = document["shrunk"]
    assert shrunk["property"] == "batches-bounded"
    assert shrunk["requests"] == 1
    assert len(shrunk["story"]) < 15
    assert "batch-bound ignored" in shrunk["story"][-1]


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (("--seed", "3", "--runs", "9"), "--runs does not go with --seed"),
        (("--seed", "3", "--seeds", "0:5"), "--seeds does not go with --seed"),
        (("--seed", "3", "--minutes", "1"), "--minutes does not go with --seed"),
        (("--seeds", "0:5", "--runs", "9"), "--runs does not go with --seeds"),
    ],
)
def test_two_ways_to_say_which_seeds_are_refused(run: Run, given: tuple[str, ...], refused: str) -> None:
    """2: one of them would have been dropped."""
    outcome = run("prove", "sim", *given)
    assert outcome.code == 2
    assert refused in outcome.err


def test_one_seed_writes_the_same_traces(run: Run, tmp_path: Path) -> None:
    """A seed replays exactly: its traces are the same bytes, and conform."""
    for name in ("one", "two"):
        assert run("prove", "sim", "--seed", "5", "--trace", str(tmp_path / name)).code == 0
    traces = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert traces == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert len(traces) > 2


def test_traces_of_two_runs_do_not_mix(run: Run, tmp_path: Path) -> None:
    """2, and what is there stays as it is."""
    (tmp_path / "decode-1.ndjson").write_bytes(b"kept")
    outcome = run("prove", "sim", "--seed", "5", "--trace", str(tmp_path))
    assert outcome.code == 2
    assert "holds traces already" in outcome.err
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("decode-1.ndjson", b"kept")]


def test_a_mistake_that_breaks_with_every_guard_on_is_an_alarm(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 where a rewritten event still breaks something in what should be guarded: that check can fail."""
    planted = next(each for each in judge.mutants() if each.name == "a failed post counts as done")
    monkeypatch.setattr(judge, "mutants", lambda: (planted,))
    monkeypatch.setattr(judge, "guarded", lambda mutant: mutant)
    outcome = run("prove", "sim", "--judge", "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["pages"], document["false_alarms"]) == (1, "symbols", [planted.name])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--without", "luck"), "--without luck"),
        (("--mutant", "?"), "the mutants are"),
        (("--seeds", "9:3"), "write A:B"),
        (("--trace", "x"), "--seed"),
        (("--judge", "--bytes"), "--bytes does not go with --judge"),
        (("--judge", "--runs", "9"), "--runs does not go with --judge"),
        (("--judge", "--mutant", "without fits", "--without", "fits"), "--mutant does not go with --judge"),
    ],
)
def test_wrong_usage_says_what_to_write(run: Run, arguments: tuple[str, ...], says: str) -> None:
    """2, and what there is."""
    outcome = run("prove", "sim", *arguments)
    assert outcome.code == 2
    assert says in outcome.err
