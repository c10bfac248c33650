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
    short("failed", 1, 11, status=502),
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
        ("failed", "POSSIBLE_VICTIM"),
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


def test_a_request_of_unlogged_duration_may_have_run_into_the_time(tmp_path: Path) -> None:
    """Beside requests whose durations are logged, one without may take ten minutes."""
    rows = [
        entry("leak", POOL + 5, AT),
        short("over before", 900),
        short("ran into it", 900, duration_ms=None),
        short("long over", 1_300, duration_ms=None),
    ]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), horizon_s=600.0)
    names = ("over before", "ran into it", "long over")
    assert [found.verdict(name)[0] for name in names] == ["CLEAR", "POSSIBLE_VICTIM", "CLEAR"]


def test_a_turnover_does_not_clear_who_may_have_ended_after_it(tmp_path: Path) -> None:
    """A request of unlogged duration that began before the pool was turned over may have ended after that."""
    text = f'[[interval]]\nrelease = "0.5.19"\npool = {POOL}\ndecode_pool = {DECODE_POOL}\n'
    rows = [
        entry("leak", POOL + 5, AT),
        short("over before", 400),
        short("ran on", 400, duration_ms=None),
        *(short(f"turns it over {n}", 100 + n, 600_000) for n in range(9)),
    ]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), deployments=(history(tmp_path, text),))
    assert [found.verdict(name)[0] for name in ("over before", "ran on")] == ["CLEAR", "POSSIBLE_VICTIM"]


# ---- who may have been there

PLACES = [
    entry("leak", POOL + 5, AT, account="unlucky"),
    short("same id, another account", 9, account="other") | {"id": "leak"},
    short("nothing logged", 9, decode_worker=None, replica=None, model=None),
    short("its replica", 9, decode_worker=None),
    short("its model", 9, decode_worker=None, replica=None),
    short("another name for its replica", 9, decode_worker=None, replica="10.0.0.7"),
    short("its model's other replica", 9, decode_worker=None, replica="pair-9"),
    short("seen elsewhere", 8_000_000, decode_worker="d9", replica="pair-9"),
    short("another model", 9, decode_worker=None, replica=None, model="bare"),
    short("its worker's other replica", 9, decode_worker=None, replica="pair-2"),
    short("seen there", 8_000_000, replica="pair-2"),
    short("of unknown length", 9, None),
    short("a twin", 9, 700),
    short("a twin", 9, 701),
]


def test_whoever_may_have_been_on_the_worker_is_a_possible_victim(tmp_path: Path) -> None:
    """What a row leaves out clears nobody, and an id is one account's: only another worker, replica or model does."""
    found = run(tmp_path, write(tmp_path / "a.jsonl", PLACES))
    victims = sorted(row["request_id"] for row in found.rows if row["class"] == "POSSIBLE_VICTIM")
    assert set(victims) == {
        *("leak", "nothing logged", "its replica", "its model", "another name for its replica", "of unknown length"),
        *("its worker's other replica", "a twin"),
    }
    assert victims.count("a twin") == 2
    assert found.relation.victims_also_unknown == 1
    assert found.by_id["of unknown length"]["besides"] == "no_length"
    assert sum(found.relation.counts.values()) == len(PLACES)


def test_only_a_start_of_the_decode_worker_ends_the_past(tmp_path: Path) -> None:
    """Prefill's restart frees no page of decode's; a start of that very decode worker does."""
    pool = f'release = "0.5.19"\npool = {POOL}\n'
    text = f"[[interval]]\nto = 2026-08-29T23:50:00Z\n{pool}[[interval]]\nfrom = 2026-08-29T23:50:00Z\n{pool}"
    decode = '[[interval]]\nrole = "decode"\nworkers = ["d2"]\nfrom = 2026-08-29T23:50:00Z\npool = 9000000\n'
    rows = [
        entry("leak", POOL + 5, AT),
        short("before", 900),
        entry("leak 2", POOL + 6, AT, decode_worker="d2"),
        short("before 2", 900, decode_worker="d2"),
        short("after 2", 90, decode_worker="d2"),
    ]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), deployments=(history(tmp_path, text + decode),))
    assert {row["request_id"] for row in found.rows if row["class"] == "POSSIBLE_VICTIM"} == {"before", "after 2"}
    assert found.verdict("before 2")[0] == "CLEAR"


def test_a_turnover_bounds_nothing_where_the_worker_is_not_known(tmp_path: Path) -> None:
    """Behind a replica may stand several workers, and the history's pool holds where it says one."""
    text = f'[[interval]]\nrelease = "0.5.19"\npool = {POOL}\ndecode_pool = {DECODE_POOL}\n'
    rows = [entry("leak", POOL + 5, AT), *(short(f"b{n}", 100 + n, 600_000) for n in range(8))]
    bare = [{**row, "decode_worker": None} for row in rows]
    log = write(tmp_path / "a.jsonl", bare)
    assert run(tmp_path, log, deployments=(history(tmp_path, text),)).counts["POSSIBLE_VICTIM"] == 8
    log = write(tmp_path / "b.jsonl", rows)
    found = run(tmp_path, log, deployments=(history(tmp_path, text),), decode_pool=5)
    assert found.counts["POSSIBLE_VICTIM"] == 4


def test_what_cannot_be_believed_turns_no_pool_over(tmp_path: Path) -> None:
    """More tokens than the pool holds, and a duration below nought, do not end how far back pages were read."""
    text = f'[[interval]]\nrelease = "0.5.19"\npool = {POOL}\ndecode_pool = {DECODE_POOL}\n'
    huge = {"usage": {"prompt_tokens": 50, "completion_tokens": 10**12}}
    rows = [
        entry("leak", POOL + 5, AT),
        short("before", 900),
        short("huge", 60) | huge,
        *(short(f"backwards {n}", 60 + n, 600_000, duration_ms=-1.0) for n in range(9)),
    ]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), deployments=(history(tmp_path, text),))
    assert found.verdict("before")[0] == "POSSIBLE_VICTIM"


def test_victims_that_were_not_looked_for_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the most answers that are looked at, and for one without a time, nobody near is told to be clear."""
    monkeypatch.setattr("kvfence.scope.victims.ANSWERS_MAX", 1)
    monkeypatch.setattr("kvfence.scope.victims.HORIZON_WITH_POOL_S", 3600)
    rows = [
        entry("leak", POOL + 5, AT),
        entry("second", POOL + 6, AT + timedelta(days=2)),
        *(entry(f"near {n}", 50 + n, AT + timedelta(days=2, minutes=-n - 5)) for n in range(4)),
        entry("near and long", POOL - 5, AT + timedelta(days=2, minutes=-9)),
        entry("far", 50, AT - timedelta(days=1)),
        entry("far and long", POOL - 5, AT - timedelta(days=1)),
    ]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows))
    assert found.counts == {"AFFECTED": 2, "UNKNOWN": 5, "CLEAR": 2}
    assert found.relation.reasons["victims_not_sought"] == 5
    assert any("1 affected answers" in said for said in found.relation.assumptions)
    untimed = write(tmp_path / "b.jsonl", [rows[0], entry("no time", POOL + 6, created=None), *rows[2:]])
    assert run(tmp_path, untimed).counts == {"AFFECTED": 2, "UNKNOWN": 7}
