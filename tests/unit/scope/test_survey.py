"""What all rows say together is the same however a file holds its numbers, and however many rows there are."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvfence.scope.relate import Request, relate
from kvfence.scope.store import open_store, rows_of
from tests.unit.scope.logbook import FIRST, POOL, entry, write


def _said(tmp_path: Path, *logs: Path) -> dict[str, Any]:
    with open_store(lambda *_: None, "1GB", tmp_path) as store:
        relation = relate(store, Request(tuple(map(str, logs)), pool=POOL))
        tables = (relation.places, relation.accounts, relation.lengths)
        found: list[list[dict[str, Any]]] = [rows_of(table.order_by(*table.columns)) for table in tables]
        return {"counts": relation.counts, "reasons": relation.reasons, "tables": found}


@pytest.mark.parametrize("rows_max", [20_000_000, 10])
def test_numbers_of_any_width_count_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    """Parquet files with numbers of 32 and of 64 bits, alone or side by side, count as the same lines of JSON do."""
    monkeypatch.setattr("kvfence.scope.survey.EXACT_ROWS_MAX", rows_max)
    monkeypatch.setattr("kvfence.scope.relate.EXACT_ROWS_MAX", rows_max)
    rows = [
        entry(f"r{n}", tokens, FIRST + timedelta(minutes=40 * n), account=f"a{n % 3}", decode_worker=f"d{n % 2}")
        for n, tokens in enumerate([*range(100, 130), 400_000, 500_000, 600_000, POOL + 1, POOL + 2, -3, 0])
    ]
    lines = write(tmp_path / "log.jsonl", rows)
    chosen = "id, created, account, model, replica, decode_worker, usage, status, ttft_ms, duration_ms"
    for width, keep in (("INTEGER", "< 20"), ("BIGINT", ">= 20"), ("INTEGER", ">= 0")):
        duckdb.sql(f"""
            COPY (SELECT * EXCLUDE (usage), usage.prompt_tokens::{width} AS prompt_tokens,
                usage.completion_tokens::{width} AS completion_tokens
            FROM (SELECT {chosen} FROM read_json('{lines}', columns={{id: 'VARCHAR', created: 'TIMESTAMPTZ',
                account: 'VARCHAR', model: 'VARCHAR', replica: 'VARCHAR', decode_worker: 'VARCHAR',
                usage: 'STRUCT(prompt_tokens BIGINT, completion_tokens BIGINT)', status: 'BIGINT', ttft_ms: 'DOUBLE',
                duration_ms: 'DOUBLE'}}))
            WHERE substr(id, 2)::INT {keep}) TO '{tmp_path}/{width}{keep[0]}.parquet'
        """)
    of_lines = _said(tmp_path, lines)
    assert of_lines["counts"]["AFFECTED"] == 2
    (places, accounts, _lengths) = of_lines["tables"]
    assert sum(row["long_requests"] for row in places) == sum(row["long_requests"] for row in accounts) == 5
    assert _said(tmp_path, tmp_path / "INTEGER>.parquet") == of_lines
    assert _said(tmp_path, tmp_path / "INTEGER<.parquet", tmp_path / "BIGINT>.parquet") == of_lines
