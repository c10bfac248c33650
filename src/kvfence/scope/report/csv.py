"""Every request that is not CLEAR as a CSV file: one row a request, for whoever writes the letters.

A text that a spreadsheet would take for a formula gets an apostrophe; hidden characters are written as code points.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvfence.evidence.visible import cell
from kvfence.scope.relation import REASONS, Class, Relation
from kvfence.scope.report.make import moment
from kvfence.scope.report.pseudonyms import Pseudonyms

COLUMNS = (
    "class",
    "account",
    "request_id",
    "started",
    "model",
    "replica",
    "prompt_tokens",
    "pool_tokens",
    "context_tokens",
    "status",
    "ttft_ms",
    "release",
    "why",
    "source",
    "line",
)
BATCH_ROWS = 50_000
_READ = (
    *("class", "account", "request_id", "started", "model", "replica", "prompt_tokens", "pool_tokens"),
    *("context_tokens", "status", "ttft_ms", "release", "reason", "besides", "source_file", "source_line"),
)
_ORDER = tuple(str(each) for each in Class)


def write_csv(relation: Relation, key: bytes | None, path: Path) -> int:
    """Write the file, the worst class first, and give the number of its rows."""
    names = Pseudonyms(key)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        count = 0
        for row in _rows(relation):
            writer.writerow(_cells(row, names))
            count += 1
    return count


def _rows(relation: Relation) -> Iterator[dict[str, Any]]:
    """Give the rows class by class and batch by batch: there may be millions of possible victims."""
    table = relation.classified
    for klass in (each for each in _ORDER if each != str(Class.CLEAR)):
        chosen = table.filter(table["class"] == klass)
        ordered = chosen.order_by(chosen["started"].asc(nulls_first=False), "request_id", "source_file", "source_line")
        for batch in ordered.select(*_READ).to_pyarrow().to_batches(max_chunksize=BATCH_ROWS):
            yield from batch.to_pylist()


def _cells(row: dict[str, Any], names: Pseudonyms) -> list[object]:
    text = {name: _text(row[name]) for name in ("model", "replica", "release", "source_file")}
    return [
        row["class"],
        _text(names.account(row["account"])),
        _text(names.request(row["request_id"])),
        moment(row["started"]),
        text["model"],
        text["replica"],
        *(row[name] for name in ("prompt_tokens", "pool_tokens", "context_tokens", "status", "ttft_ms")),
        text["release"],
        REASONS[row["reason"]] + (f"; besides: {REASONS[row['besides']]}" if row["besides"] else ""),
        text["source_file"],
        row["source_line"],
    ]


def _text(value: str | None) -> str:
    return "" if value is None else cell(value)
