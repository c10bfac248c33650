"""Writes a synthetic log in pieces, so that its size is bounded by the disk and not by memory.

DuckDB writes all three formats from one stream of Arrow batches. Rows stand in the order of their times; duplicates
that were shipped once more stand at the end, as they do in real logs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.scope.synth.fleet import Fleet, instants, make_fleet
from kvfence.scope.synth.ordinary import Piece, ordinary
from kvfence.scope.synth.plan import Plan, check
from kvfence.scope.synth.planted import Planted, plant
from kvfence.scope.synth.rows import Rows, batch, joined, size, taken

PIECE_ROWS = 250_000
FORMATS = {
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".jsonl": "FORMAT json",
    ".csv": "FORMAT csv, HEADER",
}

Progress = Callable[[int, int], None]
"""Called with the rows made and the rows in all."""


class Written(Struct, frozen=True):
    """What a log holds. expected: the counts a right report gives, by class; duplicates: rows that repeat an id."""

    rows: int
    duplicates: int
    expected: dict[str, int]
    excluded_ids: tuple[int, ...]


def write_log(plan: Plan, out: Path, progress: Progress) -> Written:
    """Write the plan's log to a file whose ending says the format.

    Raises:
        SettingsError: the plan cannot be made, or the ending is none of ``FORMATS``.
    """
    check(plan)
    if out.suffix not in FORMATS:
        raise SettingsError([f"{out.name}: end it with one of {', '.join(FORMATS)}"])
    fleet = make_fleet(plan)
    planted = plant(plan, fleet)
    batches = _batches(plan, fleet, planted, out.suffix != ".parquet", progress)
    first = next(batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, _again(first, batches))
    _copy(reader, out)
    return Written(plan.requests, size(planted.late), planted.expected, planted.excluded_ids)


def _copy(reader: pa.RecordBatchReader, out: Path) -> None:
    with duckdb.connect(config={"threads": 2, "memory_limit": "2GB"}) as connection:
        connection.register("made", reader)
        quoted = str(out).replace("'", "''")
        connection.execute(f"COPY (FROM made) TO '{quoted}' ({FORMATS[out.suffix]}, PRESERVE_ORDER true)")


def _again(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _batches(plan: Plan, fleet: Fleet, planted: Planted, zones: bool, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Give the log piece by piece, the planted rows among the ordinary ones by time, late duplicates last."""
    total = plan.requests - size(planted.rows) - size(planted.late)
    order = np.argsort(planted.rows["time"], kind="stable")
    ready, done = taken(planted.rows, order), 0
    for start in range(0, total, PIECE_ROWS):
        count = min(PIECE_ROWS, total - start)
        piece = ordinary(Piece(plan, start, count, total), fleet)
        last = start + count == total
        until = np.inf if last else instants(fleet, np.array([(start + count) / total]))[0]
        behind = int(np.searchsorted(ready["time"], until))
        rows = _in_order(joined([piece, taken(ready, np.arange(done, behind))]))
        done = behind
        progress(start + count, total)
        yield batch(rows, fleet.names, zones)
    yield batch(planted.late, fleet.names, zones)


def _in_order(rows: Rows) -> Rows:
    return taken(rows, np.argsort(rows["time"], kind="stable"))
