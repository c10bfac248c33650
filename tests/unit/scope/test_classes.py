"""The post-mortem's case in a log of our own: exactly 155, each trap in its class, each rule shown to be needed."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvfence.scope import classes
from kvfence.scope.classes import Judgement
from kvfence.scope.history import load_history
from kvfence.scope.relation import CLASS_OF_REASON, Class
from tests.unit.scope.logbook import (
    CONTEXT,
    DECODE_POOL,
    FIRST,
    HISTORY,
    PATCHED,
    POOL,
    Outcome,
    entry,
    history,
    judge,
    run,
    write,
)

AFFECTED = 155
MOMENT = timedelta(seconds=1)
NOON = FIRST + timedelta(days=2, hours=12)


def _planted() -> Iterator[dict[str, Any]]:
    """The incident: long prompts over the fortnight, each by its own account and with ordinary traffic between them."""
    for number in range(AFFECTED):
        at = FIRST + timedelta(hours=2 * number)
        yield entry(f"leak-{number}", POOL + 1 + number * 2_000, at, account=f"user-{number % 60}", decode_worker="d1")
    for number in range(600):
        at = FIRST - timedelta(days=1) + timedelta(minutes=40 * number)
        yield entry(f"short-{number}", 50 + number, at, account=f"user-{number % 60}", decode_worker="d2")


TRAPS: dict[str, tuple[tuple[str, str], list[dict[str, Any]]]] = {
    "exactly the pool": (("CLEAR", "fits"), [entry("t", POOL, NOON, decode_worker="x")]),
    "one more than the pool": (("AFFECTED", "over_pool"), [entry("t", POOL + 1, NOON)]),
    "exactly the context": (("AFFECTED", "over_pool"), [entry("t", CONTEXT, NOON)]),
    "over the context, answered": (("UNKNOWN", "over_context"), [entry("t", CONTEXT + 1, NOON)]),
    "refused with 400": (("CLEAR", "refused"), [entry("t", POOL + 9, NOON, status=400)]),
    "broken off": (("UNKNOWN", "ended_early"), [entry("t", POOL + 9, NOON, status=499)]),
    "no status": (("UNKNOWN", "no_status"), [entry("t", POOL + 9, NOON, status=None)]),
    "no time": (("UNKNOWN", "no_time"), [entry("t", POOL + 9, NOON, created=None)]),
    "no length": (("UNKNOWN", "no_length"), [entry("t", None, NOON)]),
    "a length of nought": (("UNKNOWN", "absurd_length"), [entry("t", 0, NOON)]),
    "a negative length": (("UNKNOWN", "absurd_length"), [entry("t", -681_281, NOON)]),
    "a length beyond any context": (("UNKNOWN", "absurd_length"), [entry("t", 10**17, NOON)]),
    "no length, refused": (("CLEAR", "refused"), [entry("t", None, NOON, status=400)]),
    "no length, a small body": (("CLEAR", "body_fits"), [entry("t", None, NOON, body_bytes=2_000)]),
    "one token beside a long body": (("LIKELY", "one_token_long_body"), [entry("t", 1, NOON, body_bytes=2_000_000)]),
    "one token, no body": (("UNKNOWN", "one_token_no_body"), [entry("t", 1, NOON)]),
    "one token, a small body": (("CLEAR", "fits"), [entry("t", 1, NOON, body_bytes=300)]),
    "one token, many in another log": (
        ("LIKELY", "one_token_long_body"),
        [entry("t", 1, NOON), entry("t", 9_000, NOON + timedelta(seconds=1))],
    ),
    "before the incident": (
        ("UNKNOWN", "no_pool"),
        [entry("t", POOL + 9, FIRST - timedelta(hours=1), decode_worker="x")],
    ),
    "the last second": (("AFFECTED", "over_pool"), [entry("t", POOL + 9, PATCHED - timedelta(seconds=1))]),
    "patched": (("CLEAR", "fits"), [entry("t", POOL + 9, PATCHED, decode_worker="x")]),
    "a fixed release": (("CLEAR", "fixed_release"), [entry("t", POOL + 9, NOON, replica="early-fix")]),
    "a resized pool": (
        ("CLEAR", "fits"),
        [entry("t", POOL + 9, NOON + timedelta(days=3), replica="resized", decode_worker="x")],
    ),
    "before it was resized": (
        ("AFFECTED", "over_pool"),
        [entry("t", POOL + 9, NOON - timedelta(days=1), replica="resized")],
    ),
    "a single node": (("CLEAR", "single_node"), [entry("t", POOL + 9, NOON, model="small")]),
    "a model without history": (("UNKNOWN", "no_pool"), [entry("t", POOL + 9, NOON, model="other")]),
    "no replica, histories that disagree": (
        ("UNKNOWN", "history_disagrees"),
        [entry("t", POOL + 9, NOON, replica=None)],
    ),
    "a clock in another zone": (
        ("UNKNOWN", "no_pool"),
        [entry("t", POOL + 9, "2026-08-27T03:00:00+08:00", decode_worker="x")],
    ),
    "a clock that was not set": (("UNKNOWN", "no_time"), [entry("t", POOL + 9, "1970-01-01T00:00:10Z")]),
    "no length, an empty body": (("UNKNOWN", "no_length"), [entry("t", None, NOON, body_bytes=0)]),
    "no length, a small packed body": (
        ("UNKNOWN", "no_length"),
        [entry("t", None, NOON, body_bytes=2_000, request_headers={"content-encoding": "gzip"})],
    ),
    "no length, a small body in a packed response": (
        ("CLEAR", "body_fits"),
        [entry("t", None, NOON, body_bytes=2_000, resp_headers={"content-encoding": "gzip"})],
    ),
    "one token, an empty body": (("UNKNOWN", "one_token_no_body"), [entry("t", 1, NOON, body_bytes=0)]),
    "no length, a body of unknown size": (("UNKNOWN", "no_length"), [entry("t", None, NOON, body_bytes=-1)]),
    "one token, a body of unknown size": (("UNKNOWN", "one_token_no_body"), [entry("t", 1, NOON, body_bytes=-1)]),
    "failed midway": (("UNKNOWN", "ended_early"), [entry("t", POOL + 9, NOON, status="error")]),
    "thousands with dots": (("UNKNOWN", "absurd_length"), [entry("t", "681.281", NOON)]),
    "another engine's version": (
        ("AFFECTED", "over_pool"),
        [entry("t", POOL + 9, NOON, vllm_version="0.11.0", build="2.1.0", model="bare")],
    ),
    "a tester": (("EXCLUDED", "excluded_affected"), [entry("t", POOL + 9, NOON, account="own-tests")]),
    "one request of a reporter": (("EXCLUDED", "excluded_affected"), [entry("the-report", POOL + 9, NOON)]),
    "refused, then answered": (
        ("AFFECTED", "over_pool"),
        [entry("t", POOL + 9, NOON, status=400), entry("t", POOL + 9, NOON + timedelta(seconds=3))],
    ),
    "length and status in two logs": (
        ("AFFECTED", "over_pool"),
        [entry("t", None, NOON), entry("t", POOL + 9, NOON, status=None, account=None, model=None)],
    ),
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Everything in one log: the incident, the traps, each under an id of its own."""
    folder = tmp_path_factory.mktemp("classes")
    rows = list(_planted())
    for number, (_verdict, trap) in enumerate(TRAPS.values()):
        rows += [row | {"id": row["id"] if row["id"] == "the-report" else f"trap-{number}"} for row in trap]
    rows += [rows[3], rows[4], rows[200]]
    log = write(folder / "requests.jsonl", rows)
    exclude = folder / "exclude"
    exclude.write_text("# own\naccount:own-tests\nrequest:the-report\n", "utf-8")
    return run(folder, log, deployments=(history(folder),), exclude=(exclude,))


def test_exactly_the_planted_ones_are_affected(outcome: Outcome) -> None:
    """All 155 planted answers are AFFECTED, and besides them only the traps that say so."""
    found = {row["request_id"] for row in outcome.rows if row["class"] == "AFFECTED"}
    traps = {f"trap-{number}" for number, (verdict, _) in enumerate(TRAPS.values()) if verdict[0] == "AFFECTED"}
    assert found == {f"leak-{number}" for number in range(AFFECTED)} | traps
    assert outcome.counts["AFFECTED"] == AFFECTED + len(traps)


@pytest.mark.parametrize(("number", "name"), list(enumerate(TRAPS)), ids=list(TRAPS))
def test_each_trap_is_in_its_class(outcome: Outcome, number: int, name: str) -> None:
    """A trap gets its class, for its reason."""
    expected, reason = TRAPS[name][0]
    found = outcome.verdict("the-report" if "reporter" in name else f"trap-{number}")
    assert found in {(expected, reason), (expected, "") if expected == "CLEAR" else (expected, reason)}


def test_every_request_is_counted_once(outcome: Outcome) -> None:
    """The classes sum to the rows less what was left out as the same request."""
    rows = sum(reading.rows for reading in outcome.relation.readings)
    duplicates = outcome.relation.duplicates
    assert (duplicates.same, duplicates.retried) == (4, 2), "three lines twice and two halves; a retry, a placeholder"
    assert duplicates.exact
    assert sum(outcome.relation.counts.values()) == rows - duplicates.same - duplicates.retried
    assert sum(outcome.relation.reasons.values()) == sum(outcome.relation.counts.values())


def test_places_and_accounts_hold_all_traffic(outcome: Outcome) -> None:
    """Aggregates count every row, clear or not."""
    rows = sum(reading.rows for reading in outcome.relation.readings)
    assert outcome.totals == [rows, rows, rows]


def judgement(tmp_path: Path, text: str = "", **more: Any) -> Judgement:
    """Judge by a history, or by a pool alone."""
    given = load_history([history(tmp_path, text)] if text else [])
    return Judgement(given, **{"pool": None if text else POOL} | more)


def test_without_a_history_every_release_counts(tmp_path: Path) -> None:
    """With --pool alone the fixed release and the single node are affected too, and the history says so."""
    rows = [
        entry("fixed", POOL + 1, replica="early-fix", release="0.5.22"),
        entry("single", POOL + 1, model="small"),
        entry("long ago", POOL + 1, "2026-01-01T00:00:00Z"),
        entry("fits", POOL),
    ]
    by = judgement(tmp_path)
    found = judge(tmp_path, rows, by)
    assert found == {"fixed": "over_pool", "single": "over_pool", "long ago": "over_pool", "fits": "fits"}
    assert any("every release counts as vulnerable" in said for said in by.history.notes)


def test_the_window_is_half_open(tmp_path: Path) -> None:
    """The first moment is in the window, the last is not."""
    start, end = FIRST, FIRST + timedelta(days=1)
    rows = [entry(name, POOL + 1, at) for name, at in (("first", start), ("before", start - MOMENT), ("end", end))]
    found = judge(tmp_path, rows, judgement(tmp_path, window=(start, end)))
    assert found == {"first": "over_pool", "before": "outside_window", "end": "outside_window"}


def test_an_engine_that_refuses_sooner_makes_it_likely(tmp_path: Path) -> None:
    """SGLang refuses from min(context, pool) - 6 on: such an answer is LIKELY, one token less fits."""
    text = f'[[interval]]\nengine = "sglang"\nrelease = "0.5.19"\npool = {POOL}\ncontext = {CONTEXT}\n'
    rows = [entry("fits", POOL - 7), entry("refused", POOL - 6), entry("pool", POOL), entry("over", POOL + 1)]
    found = judge(tmp_path, rows, judgement(tmp_path, text))
    assert found == {"fits": "fits", "refused": "over_engine_limit", "pool": "over_engine_limit", "over": "over_pool"}


def test_a_pool_is_used_only_where_the_history_is_silent(tmp_path: Path) -> None:
    """--pool fills in for another model, and does not touch what the history says."""
    rows = [entry("known", 9_000), entry("other", 9_000, model="other")]
    text = '[[interval]]\nmodel = "glm"\nrelease = "0.5.19"\npool = 10000\n'
    assert judge(tmp_path, rows, judgement(tmp_path, text, pool=8_000)) == {"known": "fits", "other": "over_pool"}


def test_short_requests_without_a_known_pool_are_not_clear(tmp_path: Path) -> None:
    """Where neither history nor --pool covers a place, its short requests are UNKNOWN."""
    text = '[[interval]]\nmodel = "glm"\nrelease = "0.5.19"\npool = 10000\n'
    rows = [entry(f"other-{number}", 500, model="other") for number in range(7)] + [entry("known", 500)]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), deployments=(history(tmp_path, text),))
    assert found.counts == {"UNKNOWN": 7, "CLEAR": 1}
    assert found.relation.reasons["no_pool"] == 7


def test_a_release_in_a_row_counts_where_the_history_has_none(tmp_path: Path) -> None:
    """With a history that names no release the row's own decides; a fork cannot be told."""
    expected = {
        "0.5.19": "over_pool",
        "0.5.20": "fixed_release",
        "0.5.19+vendor": "release_unknown",
        "v0.5.22": "fixed_release",
    }
    rows = [entry(name, 20_000, release=name) for name in expected]
    assert judge(tmp_path, rows, judgement(tmp_path, "[[interval]]\npool = 10000\n")) == expected


def test_what_a_row_does_not_say_may_fit_several_intervals(tmp_path: Path) -> None:
    """Without a replica, intervals of any replica may have served it: where they disagree it is UNKNOWN."""
    rows = [entry("t", POOL + 9, NOON, replica=None), entry("u", POOL + 9, NOON), entry("v", 100, NOON, replica=None)]
    found = judge(tmp_path, rows, judgement(tmp_path, HISTORY))
    assert found == {"t": "history_disagrees", "u": "over_pool", "v": "fits"}


def test_a_short_ttft_beside_a_large_body_is_likely(tmp_path: Path) -> None:
    """No length, a body over the pool, the first token sooner than prefill's best rate: LIKELY; later: UNKNOWN."""
    known = [entry(f"k{n}", 50_000 + n, body_bytes=200_000, ttft_ms=25_000.0) for n in range(40)]
    rows = [
        *known,
        entry("soon", None, body_bytes=4_000_000, ttft_ms=400.0),
        entry("late", None, body_bytes=4_000_000, ttft_ms=900_000.0),
        entry("fits", None, body_bytes=90_000, ttft_ms=400.0),
    ]
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), horizon_s=1.0)
    assert {name: found.by_id[name]["would_be"] for name in ("soon", "late")} == {"soon": "LIKELY", "late": "UNKNOWN"}
    assert found.relation.reasons["body_fits"] == 1


# ---- every rule is needed


RULES: list[tuple[set[str], dict[str, Any]]] = [
    ({"refused", "ended_early"}, entry("t", POOL + 9, NOON, status=400)),
    ({"outside_window"}, entry("t", POOL + 9, FIRST - timedelta(days=30), replica="always")),
    ({"single_node", "fixed_release"}, entry("t", POOL + 9, NOON, model="small")),
    ({"fixed_release"}, entry("t", POOL + 9, NOON, replica="early-fix")),
    ({"ended_early"}, entry("t", POOL + 9, NOON, status=499)),
    ({"no_status"}, entry("t", POOL + 9, NOON, status=None)),
    ({"over_context"}, entry("t", CONTEXT + 9, NOON)),
    ({"over_decode_pool", "over_context"}, entry("t", DECODE_POOL + 9, NOON)),
    ({"fits"}, entry("t", POOL, NOON)),
]
ALWAYS = f'[[interval]]\nreplica = "always"\nrelease = "0.5.19"\npool = {POOL}\ncontext = {CONTEXT}\n'


def test_with_all_rules_no_trap_is_suspected(tmp_path: Path) -> None:
    """Each of the rules below keeps its trap out."""
    by = judgement(tmp_path, HISTORY + ALWAYS, window=(FIRST, PATCHED))
    found = judge(tmp_path, [row | {"id": str(number)} for number, (_, row) in enumerate(RULES)], by)
    assert [number for number, (reasons, _) in enumerate(RULES) if found[str(number)] not in reasons] == []


@pytest.mark.parametrize(("reasons", "row"), RULES, ids=["+".join(sorted(reasons)) for reasons, _ in RULES])
def test_without_its_rule_a_trap_is_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reasons: set[str], row: dict[str, Any]
) -> None:
    """Each rule that keeps a request out of AFFECTED and LIKELY is the last to do so: without it the trap counts."""
    by = judgement(tmp_path, HISTORY + ALWAYS, window=(FIRST, PATCHED))
    real: Callable[..., Any] = classes._first

    def without(cases: list[tuple[Any, str]], otherwise: str) -> Any:
        return real([case for case in cases if case[1] not in reasons], otherwise)

    monkeypatch.setattr(classes, "_first", without)
    # A row that no rule keeps out shows that the history itself suspects it.
    found = judge(tmp_path, [row, entry("sure", POOL + 9, NOON, replica="always")], by)
    assert found["sure"] == "over_pool"
    assert CLASS_OF_REASON[found["t"]] in {Class.AFFECTED, Class.LIKELY}


def test_an_interval_of_a_replica_does_not_outrank_where_no_replica_is_logged(tmp_path: Path) -> None:
    """A large pool of one replica clears nobody whose replica is not known: another one may have served it."""
    text = f"""
[[interval]]
pool = {POOL}
context = {CONTEXT}

[[interval]]
model = "glm"
replica = "resized"
pool = 2040000
context = {CONTEXT}
"""
    log = write(
        tmp_path / "log.jsonl",
        [
            entry("nowhere", POOL + 9, NOON, replica=None, decode_worker="y"),
            entry("named", POOL + 9, NOON, replica="resized", decode_worker="x"),
            entry("other", POOL + 9, NOON, replica="pair-2"),
        ],
    )
    found = run(tmp_path, log, deployments=(history(tmp_path, text),))
    assert found.verdict("nowhere") == ("UNKNOWN", "history_disagrees")
    assert found.verdict("named") == ("CLEAR", "fits")
    assert found.verdict("other") == ("AFFECTED", "over_pool")


def test_an_id_alone_excludes_nothing_where_several_accounts_have_it(tmp_path: Path) -> None:
    """ACCOUNT/ID excludes that account's; an id that two accounts have excludes neither, and it is said."""
    rows = [
        *(entry("mine", POOL + 9, NOON, account=name) for name in ("acme", "own-tests")),
        *(entry("a/b", POOL + 9, NOON, account=name) for name in ("acme", "org/team")),
        entry("short elsewhere", POOL + 9, NOON),
        entry("short elsewhere", 9, NOON, account="own-tests"),
        entry("only", POOL + 9, NOON),
    ]
    exclude = tmp_path / "exclude"
    exclude.write_text("request:mine\nrequest:org/team/a/b\nshort elsewhere\nrequest:only\n", "utf-8")
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), exclude=(exclude,), horizon_s=0.001)
    excluded = {(row["account"], row["request_id"]) for row in found.rows if row["class"] == "EXCLUDED"}
    assert excluded == {("org/team", "a/b"), ("acme", "only")}
    assert [(each.kind, each.count) for each in found.relation.skews] == [("exclusion_of_several", 3)]


def test_another_engine_is_not_judged_by_sglangs_numbers(tmp_path: Path) -> None:
    """An interval of another engine, with or without a release, leaves its long prompts UNKNOWN."""
    for text in ('engine = "vllm"\n', 'engine = "vllm"\nrelease = "0.11.0"\n', 'release = "0.11.0"\n'):
        found = judge(tmp_path, [entry("t", 20_000)], judgement(tmp_path, f"[[interval]]\npool = 10000\n{text}"))
        assert found == {"t": "release_unknown"}
    text = '[[interval]]\npool = 10000\nengine = "vllm"\nvulnerable = true\n'
    assert judge(tmp_path, [entry("t", 20_000)], judgement(tmp_path, text)) == {"t": "over_pool"}


def test_the_uncovered_part_of_an_hour_is_not_covered(tmp_path: Path) -> None:
    """Where the history begins in the middle of an hour, what came before is UNKNOWN, and what came after is not."""
    text = '[[interval]]\nfrom = 2026-08-29T12:30:00Z\nto = 2026-08-29T12:40:00Z\nrelease = "0.5.19"\npool = 10000\n'
    text += '[[interval]]\nfrom = 2026-08-29T12:40:00Z\nrelease = "0.5.19"\npool = 10000\n'
    half = timedelta(minutes=30)
    before = [entry(f"b{n}", 50, NOON + timedelta(minutes=n), replica="early") for n in range(4)]
    after = [entry(f"a{n}", 50, NOON + half + timedelta(minutes=4 * n), replica="late") for n in range(6)]
    log = write(tmp_path / "a.jsonl", [*before, *after, entry("timeless", 50, created=None)])
    found = run(tmp_path, log, deployments=(history(tmp_path, text),))
    assert found.counts == {"UNKNOWN": 5, "CLEAR": 6}
    assert found.relation.reasons["no_pool"] == 5


BORDER = FIRST + timedelta(hours=6)
"""After the first border by less than a clock can be off."""


def test_times_without_a_zone_decide_nothing_near_a_border(tmp_path: Path) -> None:
    """Text, dates and naive columns alike: near the window's or the history's border they are UNKNOWN, and counted."""
    log = write(
        tmp_path / "a.jsonl",
        [
            entry("zoned", POOL + 9, BORDER),
            entry("naive", POOL + 9, BORDER.isoformat()),
            entry("before", POOL + 9, (FIRST - timedelta(hours=6)).isoformat()),
            entry("long before", POOL + 9, (FIRST - timedelta(days=2)).isoformat()),
            entry("well inside", POOL + 9, (FIRST + timedelta(days=1)).isoformat()),
            entry("day", POOL + 9, "2026-08-26"),
            entry("berlin", POOL + 9, "2026-08-27 08:00:00 Europe/Berlin"),
        ],
    )
    table, later = tmp_path / "b.parquet", BORDER + timedelta(hours=2)
    row = f"'glm' AS model, 'pair-1' AS replica, 200 AS status, {POOL + 9} AS prompt_tokens"
    duckdb.sql(f"COPY (SELECT 'naive column' AS id, TIMESTAMP '{later}' AS ts, {row}) TO '{table}' (FORMAT parquet)")
    days = tmp_path / "c.parquet"
    duckdb.sql(f"COPY (SELECT 'date column' AS id, DATE '2026-08-27' AS ts, {row}) TO '{days}' (FORMAT parquet)")
    text = f'[[interval]]\nreplica = "pair-1"\nrelease = "0.5.19"\npool = {POOL}\nfrom = 2026-08-27T00:00:00Z\n'
    ways: tuple[dict[str, Any], ...] = (
        {"window": (FIRST, None)},
        {"deployments": (history(tmp_path, text),), "window": (None, PATCHED)},
    )
    for options in ways:
        found = run(tmp_path, log, table, days, horizon_s=0.001, **options)
        affected = {row["request_id"] for row in found.rows if row["class"] == "AFFECTED"}
        unsure = {row["request_id"] for row in found.rows if row["reason"] == "zone_not_known"}
        assert affected == {"zoned", "well inside", "berlin"}
        assert unsure - {"long before"} == {"naive", "before", "day", "naive column", "date column"}
        assert found.troubles() == {"no_zone": 7, "day_only": 2}
    found = run(tmp_path, log, table, days, window=(FIRST, None), zone="UTC", horizon_s=0.001)
    unsure = {row["request_id"] for row in found.rows if row["reason"] == "zone_not_known"}
    assert unsure == set()
    assert found.verdict("before") == ("CLEAR", "outside_window")


def test_the_hour_that_a_zone_has_twice_decides_nothing(tmp_path: Path) -> None:
    """Where clocks were put back a time names two moments; an hour away from it, one."""
    text = "2026-10-25T0{}:30:00"
    log = write(tmp_path / "a.jsonl", [entry(f"at {hour}", POOL + 9, text.format(hour)) for hour in (2, 5)])
    borders = [FIRST.fromisoformat(f"2026-10-25T0{hour}:00:00") for hour in (1, 4)]
    found = [run(tmp_path, log, window=(border, None), zone="Europe/Berlin", horizon_s=0.001) for border in borders]
    assert found[0].verdict("at 2")[1] == "zone_not_known"
    assert found[1].verdict("at 5") == ("AFFECTED", "over_pool")
