"""Relations made by hand: the engine is not asked, so that a report is tested against rows whose class is given."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import ibis
import pytest

from kvfence.scope.relation import (
    ACCOUNT_COLUMNS,
    CLASS_OF_REASON,
    CLASSIFIED_COLUMNS,
    LENGTH_COLUMNS,
    PLACE_COLUMNS,
    Class,
    Duplicates,
    History,
    Interval,
    Reading,
    Relation,
)

POOL, CONTEXT = 681_280, 1_048_576
MODEL = "glm-5.3"
INTERVAL = Interval(model=MODEL, pool=POOL, context=CONTEXT, release="0.5.18", origin="pools.toml#1")


def row(request_id: str, reason: str = "over_pool", **fields: Any) -> dict[str, Any]:
    """Make one classified request."""
    made: dict[str, Any] = dict.fromkeys(CLASSIFIED_COLUMNS)
    made |= {
        "request_id": request_id,
        "started": datetime.fromisoformat("2026-09-01T12:00"),
        "account": "acme",
        "model": MODEL,
        "replica": "r0",
        "prompt_tokens": 700_000,
        "status": 200,
        "pool_tokens": POOL,
        "context_tokens": CONTEXT,
        "vulnerable": True,
        "class": str(CLASS_OF_REASON[reason]),
        "would_be": str(CLASS_OF_REASON[reason]),
        "reason": reason,
        "source_file": "a.jsonl",
        "source_line": 1,
    }
    return made | fields


Make = Callable[..., Relation]


@pytest.fixture
def make_relation() -> Make:
    """Give a maker of relations; the totals are those of the rows given."""

    def make(rows: Sequence[dict[str, Any]], **changes: Any) -> Relation:
        connection = ibis.duckdb.connect(threads=1)
        counts = {str(each): sum(row["class"] == each for row in rows) for each in Class}
        places = [
            {
                "hour": row["started"].replace(minute=0),
                **{name: row[name] for name in ("model", "replica", "worker", "prompt_tokens", "completion_tokens")},
                "requests": 1,
                "long_requests": 1,
                "longest_prompt": row["prompt_tokens"],
            }
            for row in rows
        ]
        names = list(dict.fromkeys(row["account"] for row in rows))
        made = {
            "classified": _table(connection, "classified", CLASSIFIED_COLUMNS, rows),
            "places": _table(connection, "places", PLACE_COLUMNS, places),
            "accounts": _table(connection, "accounts", ACCOUNT_COLUMNS, [_account(name, rows) for name in names]),
            "lengths": _table(
                connection, "lengths", LENGTH_COLUMNS, [{"model": MODEL, "bucket": 77, "requests": len(rows)}]
            ),
            "counts": counts,
            "reasons": {code: sum(row["reason"] == code for row in rows) for code in {row["reason"] for row in rows}},
            "readings": (Reading("a.jsonl", "json", rows=len(rows)),),
            "history": History((INTERVAL,), given=True),
            "duplicates": Duplicates(),
            "long_tokens": POOL // 2,
            "window": (datetime.fromisoformat("2026-08-27"), datetime.fromisoformat("2026-09-10")),
            "window_given": True,
            "pool": None,
            "context": None,
        }
        return Relation(**made | changes)

    return make


def _account(name: str | None, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [row for row in rows if row["account"] == name]
    times = [row["started"] for row in own]
    return {
        "account": name,
        "requests": len(own),
        "long_requests": len(own),
        "longest_prompt": max((row["prompt_tokens"] or 0 for row in own), default=None),
        "first": min(times),
        "last": max(times),
    }


def _table(connection: Any, name: str, schema: dict[str, str], rows: Sequence[dict[str, Any]]) -> Any:
    return connection.create_table(name, ibis.memtable(list(rows), schema=schema))
