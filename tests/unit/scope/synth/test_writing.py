"""A synthetic log holds what its plan says, in every format, and one seed gives one log.

The counts are taken here by SQL of the test's own: neither the report's classes nor the maker's arrays.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from kvfence.core.errors import SettingsError
from kvfence.scope.synth.fleet import PROBER, REPORTER, TESTERS
from kvfence.scope.synth.plan import Plan, Prober
from kvfence.scope.synth.writing import Written, write_log

ROWS = 20_000
OVER = """
    model = 'glm-5.3' and prompt_tokens > 681280 and prompt_tokens <= 1048576 and status = 200
    and time >= '2026-08-27 00:00:00+00' and time < '2026-09-09 19:04:00+00'
    and not (replica = 'glm-5.3-r5' and time >= '2026-09-05 00:00:00+00')
    and not (replica = 'glm-5.3-r6' and time >= '2026-09-07 00:00:00+00')
"""


def written(out: Path, **plan: object) -> Written:
    """Write a small log."""
    return write_log(Plan(ROWS, **plan), out, lambda done, total: None)  # type: ignore[arg-type]


def ask(question: str, out: Path) -> list[tuple[object, ...]]:
    """Ask a log one question; times are UTC."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        types = "" if out.suffix == ".parquet" else ", sample_size = -1"
        rows = f"(SELECT * REPLACE (time::TIMESTAMPTZ AS time) FROM read_{KINDS[out.suffix]}('{out}'{types}))"
        return connection.execute(question.replace("LOG", rows)).fetchall()


KINDS = {".parquet": "parquet", ".jsonl": "json", ".csv": "csv"}


@pytest.mark.parametrize("ending", KINDS)
def test_every_format_holds_the_same_incident(ending: str, tmp_path: Path) -> None:
    """155 distinct requests meet every condition once tests and the reporter are taken away, in each format."""
    out = tmp_path / f"log{ending}"
    found = written(out)
    ids = ", ".join(f"'req-{number:016x}'" for number in found.excluded_ids)
    ours = f"(account_id IN ('{TESTERS}', '{REPORTER}') OR request_id IN ({ids}))"
    count = f"SELECT count(DISTINCT request_id) FILTER (NOT {ours}), count(DISTINCT request_id) FILTER ({ours})"
    assert ask(f"{count} FROM LOG WHERE {OVER}", out) == [(155, found.expected["excluded"])]
    assert ask("SELECT count(*), count(*) - count(DISTINCT request_id) FROM LOG", out) == [(ROWS, found.duplicates)]


def test_the_traps_are_there(tmp_path: Path) -> None:
    """Each trap has rows: refused, fixed release, resized pool, both edges of the limit, too early, late, no length."""
    out = tmp_path / "log.parquet"
    written(out)
    over = "model = 'glm-5.3' AND prompt_tokens > 681280"
    traps = {
        f"{over} AND status = 400": 20,
        f"{over} AND replica = 'glm-5.3-r6' AND time BETWEEN '2026-09-07 00:00:00+00' AND '2026-09-09 14:00:00+00'": 12,
        f"{over} AND replica = 'glm-5.3-r5' AND time BETWEEN '2026-09-05 00:00:00+00' AND '2026-09-09 14:00:00+00'": 15,
        "prompt_tokens = 681280": 1,
        "prompt_tokens = 681281": 1,
        "prompt_tokens IS NULL AND status = 200": 16,
    }
    for condition, count in traps.items():
        assert ask(f"SELECT count(DISTINCT request_id) FROM LOG WHERE {condition}", out) == [(count,)], condition
    ((after,),) = ask(f"SELECT count(*) FROM LOG WHERE {over} AND time >= '2026-09-09 19:40:00+00'", out)
    assert isinstance(after, int)
    assert after > 20


def test_text_logs_carry_another_time_zone(tmp_path: Path) -> None:
    """One replica writes times eight hours east: without its zone four affected rows leave the window, six enter it."""
    out = tmp_path / "log.csv"
    written(out)
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT time, prompt_tokens FROM read_csv('{out}', all_varchar = true) "
            "WHERE replica = 'glm-5.3-r7' AND prompt_tokens::BIGINT > 681280 AND status = '200'"
        ).fetchall()
    assert all(text.endswith("+08:00") for text, _ in rows)
    start, private = datetime(2026, 8, 27, tzinfo=UTC), datetime(2026, 9, 9, 14, tzinfo=UTC)
    instants = [
        (datetime.fromisoformat(text), datetime.fromisoformat(text[:-6]).replace(tzinfo=UTC)) for text, _ in rows
    ]
    enter = sum(instant < start <= naive for instant, naive in instants)
    leave = sum(start <= instant < private <= naive for instant, naive in instants)
    assert enter >= 6
    assert leave >= 4


@pytest.mark.parametrize(("prober", "over"), [(Prober.LADDER, 15), (Prober.REPEAT, 30), (Prober.BURST, 30)])
def test_a_planted_prober_is_among_the_affected(prober: Prober, over: int, tmp_path: Path) -> None:
    """The prober's prompts above the limit count among the 155, so that a careless total cannot tell."""
    out = tmp_path / "log.parquet"
    found = written(out, prober=prober)
    ids = ", ".join(f"'req-{number:016x}'" for number in found.excluded_ids)
    ours = f"account_id NOT IN ('{TESTERS}', '{REPORTER}') AND request_id NOT IN ({ids})"
    count = f"SELECT count(DISTINCT request_id), count(DISTINCT request_id) FILTER (account_id = '{PROBER}') FROM LOG"
    assert ask(f"{count} WHERE {OVER} AND {ours}", out) == [(155, over)]


def test_one_seed_gives_one_log(tmp_path: Path) -> None:
    """The same plan gives the same bytes, and another seed others."""
    digests = []
    for name, seed in (("a.jsonl", 1), ("b.jsonl", 1), ("c.jsonl", 2)):
        written(tmp_path / name, seed=seed)
        digests.append(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_a_plan_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """Wrong numbers are named all at once, and an unknown ending is refused before anything is written."""
    with pytest.raises(SettingsError) as error:
        write_log(Plan(10, pool=1_048_576), tmp_path / "log.csv", lambda done, total: None)
    assert len(error.value.problems) == 2
    with pytest.raises(SettingsError, match="end it with one of"):
        written(tmp_path / "log.xlsx")
    assert list(tmp_path.iterdir()) == []
