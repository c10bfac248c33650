"""Which rows are one request: an id is a client's to choose, and two answers under one id are two answers."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.unit.scope.logbook import FIRST, POOL, Outcome, entry, run, write

AT = FIRST + timedelta(days=3, hours=2, microseconds=1234)
LONG = POOL + 100


def later(seconds: float) -> object:
    """A moment so long after the first one, as a log writes it."""
    return (AT + timedelta(seconds=seconds)).isoformat() + "Z"


GATEWAY = [
    entry("two lengths", LONG, later(0)),
    entry("two lengths", LONG + 1, later(20)),
    entry("two lengths", None, later(40)),
    entry("long and short", LONG, later(0)),
    entry("long and short", 500, later(9)),
    entry("answered twice", LONG, later(0)),
    entry("answered twice", LONG, later(600)),
    entry("answered at once", LONG, later(0)),
    entry("answered at once", LONG, later(0.5)),
    entry("refused first", LONG, later(0), status=429),
    entry("refused first", LONG, later(3)),
    entry("refused elsewhere", LONG, later(0), status=400),
    entry("refused elsewhere", LONG, later(60), status=None),
    entry("in two logs", LONG, later(0)),
    entry("in two logs twice", LONG, later(0)),
    entry("in two logs twice", LONG, later(30)),
    entry("shipped again", LONG, later(0)),
    entry("shipped again", LONG, later(30)),
    entry("another zone", LONG, later(0)),
    entry("on the hour", LONG, "2026-08-30T02:00:00Z"),
    *(entry(name, LONG + number, later(number)) for number, name in enumerate(("None", "null", "Undefined", "-", ""))),
    *(entry("NULL", LONG + number, later(number)) for number in range(3)),
    entry("x" * 300 + "a", LONG, later(0)),
    entry("x" * 300 + "b", LONG, later(0)),
]
ENGINE = [
    entry("in two logs", LONG, later(4), account=None, replica="d-pod"),
    entry("in two logs twice", LONG, later(2), account=None),
    entry("in two logs twice", LONG, later(32), account=None),
    entry("shipped again", LONG, later(30)),
    entry("another zone", LONG, later(8 * 3600)),
    entry("on the hour", LONG, "2026-08-30T10:00:00Z"),
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two logs of the same requests."""
    folder = tmp_path_factory.mktemp("merging")
    return run(
        folder, write(folder / "gateway.jsonl", GATEWAY), write(folder / "engine.jsonl", ENGINE), horizon_s=0.001
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two lengths", {"AFFECTED": 2, "UNKNOWN": 1}),
        ("long and short", {"AFFECTED": 1}),
        ("answered twice", {"AFFECTED": 2}),
        ("answered at once", {"AFFECTED": 2}),
        ("refused first", {"AFFECTED": 1}),
        ("refused elsewhere", {"UNKNOWN": 1}),
        ("in two logs", {"AFFECTED": 1}),
        ("in two logs twice", {"AFFECTED": 2}),
        ("shipped again", {"AFFECTED": 2}),
        ("another zone", {"AFFECTED": 1}),
        ("on the hour", {"AFFECTED": 2}),
        ("x" * 256, {"AFFECTED": 2}),
    ],
)
def test_every_answer_is_counted_once(outcome: Outcome, name: str, expected: dict[str, int]) -> None:
    """Other lengths and other times are other answers; a retry, an export made twice and a second log are not."""
    found = Counter(row["class"] for row in outcome.rows if row["request_id"] == name and row["class"] != "CLEAR")
    assert found == expected


def test_words_for_nothing_are_no_ids(outcome: Outcome) -> None:
    """What programs write where there is no id names no request: each row stands by itself, with its place."""
    nameless = [row for row in outcome.rows if row["request_id"].startswith(row["source_file"])]
    assert len(nameless) == 8
    assert {row["class"] for row in nameless} == {"AFFECTED"}


def test_it_is_said_how_many_rows_were_merged_and_how_many_were_not(outcome: Outcome) -> None:
    """Every row is a request or is counted as part of one."""
    duplicates = outcome.relation.duplicates
    rows = len(GATEWAY) + len(ENGINE)
    assert sum(outcome.relation.counts.values()) == rows - duplicates.same - duplicates.retried
    assert (duplicates.same, duplicates.retried) == (1, 6)
    assert duplicates.reused == 8
