"""Possible victims: who finished on the decode worker before an affected answer, no further back than pages last."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.scope.logbook import DECODE_POOL, FIRST, POOL, Outcome, entry, history, run, write

AT = FIRST + timedelta(days=3)


def short(name: str, before_s: float, tokens: int = 1_000, **more: Any) -> dict[str, Any]:
    """A request that finished so many seconds before the affected answer was begun."""
    return entry(name, tokens, AT - timedelta(seconds=before_s + 5), **more)


ROWS = [
    entry("leak", POOL + 5, AT, account="unlucky"),
    short("just before", 1),
    short("on another worker", 1, decode_worker="d2"),
    short("refused", 1, status=429),
    short("within the turnover", 400, 900_000, replica="other-pair"),
    short("filler", 300, 1_139_000, replica="resized"),
    short("beyond the turnover", 600),
    short("a tester's", 2, account="own-tests"),
    short("still running", -60),
    short("of unknown length", 3, None),
]  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One affected answer, and requests before it."""
    folder = tmp_path_factory.mktemp("victims")
    exclude = folder / "exclude"
    exclude.write_text("account:own-tests\n", "utf-8")
    text = f'[[interval]]\nrelease = "0.5.19"\npool = {POOL}\ndecode_pool = {DECODE_POOL}\n'
    text += '[[interval]]\nreplica = "resized"\nrelease = "0.5.22"\npool = 9000000\n'
    text += '[[interval]]\nreplica = "other-pair"\nrelease = "0.5.22"\npool = 9000000\n'
    log = write(folder / "a.jsonl", ROWS)
    return run(folder, log, deployments=(history(folder, text),), exclude=(exclude,))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("leak", "AFFECTED"),
        ("just before", "POSSIBLE_VICTIM"),
        ("on another worker", "CLEAR"),
        ("refused", "CLEAR"),
        ("within the turnover", "POSSIBLE_VICTIM"),
        ("beyond the turnover", "CLEAR"),
        ("a tester's", "EXCLUDED"),
        ("still running", "CLEAR"),
        ("of unknown length", "POSSIBLE_VICTIM"),
    ],
)
def test_who_may_have_been_read(outcome: Outcome, name: str, expected: str) -> None:
    """Same worker, finished before, and less than decode's pool finished since."""
    assert outcome.verdict(name)[0] == expected


def test_victims_are_taken_out_of_the_clear_ones(outcome: Outcome) -> None:
    """Every request is counted once, in one class."""
    assert sum(outcome.relation.counts.values()) == len(ROWS)
    assert outcome.by_id["just before"]["victim_of"] == 1
    assert outcome.verdict("a tester's") == ("EXCLUDED", "excluded_victim")


def test_the_bound_and_its_assumptions_are_said(outcome: Outcome) -> None:
    """The report says on what possible victims rest, and which times were looked at."""
    assert any("turnover of decode's pool" in said for said in outcome.relation.assumptions)
    ((place, start, end, name),) = outcome.relation.read_windows
    assert (place, name) == ("d1", "leak")
    assert start < AT <= end


def test_without_a_pools_size_a_time_bounds_it(tmp_path: Path) -> None:
    """Where decode's pool is not known, requests of the last hour may have been read; --horizon says otherwise."""
    rows = [entry("leak", POOL + 5, AT), short("half an hour", 1_800), short("two hours", 7_200)]
    log = write(tmp_path / "a.jsonl", rows)
    found = run(tmp_path, log)
    assert [found.verdict(name)[0] for name in ("half an hour", "two hours")] == ["POSSIBLE_VICTIM", "CLEAR"]
    found = run(tmp_path, log, horizon_s=600.0)
    assert found.verdict("half an hour")[0] == "CLEAR"
