"""Logs that tests write themselves, and what the engine makes of them. By other code than ``kvfence scope synth``."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kvfence.scope.classes import Judgement, classify
from kvfence.scope.relate import Request, relate
from kvfence.scope.relation import REQUEST_COLUMNS, Relation
from kvfence.scope.store import open_store

POOL, CONTEXT, DECODE_POOL = 681_280, 1_048_576, 2_040_000
FIRST = datetime.fromisoformat("2026-08-27T00:00:00")
PATCHED = datetime.fromisoformat("2026-09-09T19:04:00")

HISTORY = f"""
[[interval]]
model = "glm"
from = 2026-08-27T00:00:00Z
to = 2026-09-09T19:04:00Z
release = "0.5.19"
pool = {POOL}
decode_pool = {DECODE_POOL}
context = {CONTEXT}

[[interval]]
model = "glm"
from = 2026-09-09T19:04:00Z
release = "0.5.22"
pool = 2040000
context = {CONTEXT}

[[interval]]
model = "glm"
replica = "early-fix"
from = 2026-08-27T00:00:00Z
release = "0.5.20"
pool = {POOL}
context = {CONTEXT}

[[interval]]
model = "glm"
replica = "resized"
from = 2026-08-30T00:00:00Z
release = "0.5.19"
pool = 2040000
context = {CONTEXT}

[[interval]]
model = "small"
mode = "single"
pool = {POOL}
context = {CONTEXT}

[[interval]]
model = "bare"
pool = {POOL}
context = {CONTEXT}
"""


class Outcome:
    """What a run gave: its relation, and the classified rows by request id."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.rows: list[dict[str, Any]] = relation.classified.to_pyarrow().to_pylist()
        self.by_id = {row["request_id"]: row for row in self.rows}
        self.totals = [
            int(table["requests"].sum().to_pyarrow().as_py())
            for table in (relation.places, relation.accounts, relation.lengths)
        ]

    @property
    def counts(self) -> dict[str, int]:
        """Requests by class, without those of which there are none."""
        return {name: count for name, count in self.relation.counts.items() if count}

    def verdict(self, request_id: str) -> tuple[str, str]:
        """The class and the reason of a request; of a short CLEAR one, which is not in the table, no reason."""
        row = self.by_id.get(request_id)
        return (row["class"], row["reason"]) if row else ("CLEAR", "")

    def troubles(self) -> dict[str, int]:
        """What was wrong in all sources, by kind."""
        found: dict[str, int] = {}
        for reading in self.relation.readings:
            for each in reading.troubles:
                found[each.kind] = found.get(each.kind, 0) + each.count
        return found


def run(tmp_path: Path, *logs: Path | str, **options: Any) -> Outcome:
    """Read and judge logs; a pool is given unless a history is."""
    if "deployments" not in options and "pool" not in options:
        options["pool"] = POOL
    with open_store(lambda *_: None, "1GB", tmp_path) as store:
        return Outcome(relate(store, Request(tuple(str(log) for log in logs), **options)))


def judge(tmp_path: Path, rows: Iterable[Mapping[str, Any]], judgement: Judgement) -> dict[str, str]:
    """The reasons that ``classify`` alone gives to rows that no log was written for."""
    schema = {**REQUEST_COLUMNS, "tokens": "int64", "most_tokens": "int64", "absurd": "boolean", "bad": "int64"}
    with open_store(lambda *_: None, "1GB", tmp_path) as store:
        held = store.hold("prepared", [_columns(row) for row in rows], schema)
        judged = classify(store, held, judgement)
        return {row["request_id"]: row["reason"] for row in judged.to_pyarrow().to_pylist()}


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(REQUEST_COLUMNS)
    made |= {name: row[name] for name in REQUEST_COLUMNS if name in row}
    created = row.get("created")
    made |= {
        "request_id": row["id"],
        "started": None if created is None else datetime.fromisoformat(created.removesuffix("Z")),
        "worker": row.get("decode_worker"),
        "tokens": row["usage"].get("prompt_tokens"),
        "most_tokens": row["usage"].get("prompt_tokens"),
        "absurd": False,
        "bad": row.get("bad", 0),
    }
    return made


def entry(
    request_id: str, tokens: object, at: datetime | str = FIRST + timedelta(days=1), **more: Any
) -> dict[str, Any]:
    """One request as a gateway logs it; ``None`` takes a field away."""
    row: dict[str, Any] = {
        "id": request_id,
        "created": at if isinstance(at, str) else at.isoformat() + "Z",
        "account": "acme",
        "model": "glm",
        "replica": "pair-1",
        "decode_worker": "d1",
        "usage": {"prompt_tokens": tokens, "completion_tokens": 100},
        "status": 200,
        "ttft_ms": 900.0,
        "duration_ms": 5_000.0,
    } | more
    return {name: value for name, value in row.items() if value is not None}


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def history(tmp_path: Path, text: str = HISTORY) -> str:
    """Write a history and give its path."""
    path = tmp_path / "pools.toml"
    path.write_text(text, "utf-8")
    return str(path)
