"""Opens request logs of any known form and gives one table of requests, with what was found in each file.

Parquet is read where it lies; text is staged (``staging.py``). What cannot be read is counted in the file's
``Reading``. Not for: classes (``classes.py``), tables of a warehouse (``warehouse.py``).
"""

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import duckdb
import ibis
from msgspec import Struct, structs

from kvfence.core.errors import EvidenceError
from kvfence.evidence.sources import expand
from kvfence.scope import formats
from kvfence.scope.columns import KINDS, Field, Pick, pick
from kvfence.scope.json_lines import GOOD
from kvfence.scope.relation import REQUEST_COLUMNS, Reading, Trouble
from kvfence.scope.staging import (
    Plan,
    Staged,
    cannot_be_read,
    head_of,
    quoted,
    read_already,
    seen,
    stage_text,
    with_picks,
    with_unseen,
)
from kvfence.scope.store import Store, number_of, rows_of
from kvfence.scope.values import (
    AS_STORED,
    DAY_ONLY,
    DAY_ONLY_OF_COLUMN_BIT,
    NO_ZONE,
    NO_ZONE_OF_COLUMN_BIT,
    ROW_BITS,
    Reader,
    Value,
    column_bits,
    dtype_of,
    only_floats,
    typed,
)

Ranges = dict[str, list[tuple[Any, Any]]]
CONSTANT_CHARS_MAX = 32


class Sources(Struct):
    """The requests of all files as one ibis table (``REQUEST_COLUMNS``, bad, source_file, source_line).

    parquet: files that are read where they lie.
    ranges: the least and the greatest values of each column, where all files tell them; None where some do not.
    positions: by file and kind, the lines that were not read, as far as their places were kept.
    """

    table: Any
    readings: dict[str, Reading]
    ranges: Ranges | None = None
    parquet: tuple[str, ...] = ()
    positions: Mapping[str, Mapping[str, Sequence[int]]] = {}


class _Table(Struct, frozen=True):
    """Rows as requests. all_read: no value of theirs is unread."""

    table: Any
    all_read: bool = False


def ingest(store: Store, specs: Sequence[str], plan: Plan) -> Sources:
    """Read all files that the specs name.

    Raises:
        EvidenceError: a file is not there, or none could be read.
    """
    named = dict.fromkeys(name for spec in specs for name in expand(spec))
    files: dict[str, str] = {}
    for name in named:
        files.setdefault(os.path.realpath(name) if name != "-" else name, name)
    names = list(files.values())
    kept = set(names)
    again = [read_already(name, files[os.path.realpath(name)]) for name in named if name not in kept]
    store.size = sum(Path(name).stat().st_size for name in names if Path(name).exists())
    staged, parquet = [], {}
    done = 0
    for name in names:
        store.report("reading", done, max(store.size, 2))
        done += Path(name).stat().st_size if Path(name).exists() else 0
        if head_of(name).startswith(b"PAR1"):
            parquet[name] = _parquet(store, name, plan)
        else:
            staged.append(stage_text(store, name, plan))
    tables = [_Table(_staged_table(store, each)) for each in staged if each.path is not None]
    readable = {name: each for name, each in parquet.items() if each.picks}
    tables += _parquet_tables(store, readable, plan.zone)
    found = [*(each.reading for each in (*staged, *parquet.values())), *again]
    readings = {each.source: each for each in found}
    if not tables:
        said = "; ".join(trouble.text for reading in readings.values() for trouble in reading.troubles[:1])
        raise EvidenceError(f"no request could be read from {', '.join(names[:5])}: {said or 'nothing there'}")
    table = _as_one([each.table for each in tables])
    return Sources(
        table,
        readings,
        _ranges(store, staged, readable, tables),
        tuple(readable),
        {each.reading.source: each.positions for each in staged},
    )


def _as_one(tables: Sequence[Any]) -> Any:
    """Give the rows of all tables; numbers that keep a file's type get the same in each."""
    if len(tables) == 1:
        return tables[0]
    return ibis.union(*(each.cast({name: dtype_of(name) for name in AS_STORED}) for each in tables))


def _ranges(
    store: Store, staged: Sequence[Staged], parquet: Mapping[str, Staged], tables: Sequence[_Table]
) -> Ranges | None:
    """Gather the least and the greatest values that the files' own statistics tell, and whether a value is unread.

    Statistics leave NaN out: that alone is looked for in the rows, where a column of floats was chosen.
    """
    found: Ranges = {}
    own = (*REQUEST_COLUMNS, "bad")
    files: list[tuple[str, dict[str, tuple[str, ...]]]] = [
        (str(each.path), {name: (name,) for name in own}) for each in staged if each.path is not None
    ]
    for name, each in parquet.items():
        paths = {pick.column: pick.path for pick in each.picks if pick.column in RANGED}
        sure = [pick for pick in each.picks if pick.column in RANGED or pick.column in {"ended", "first_token"}]
        if len(sure) > len(paths) or any(pick.scale != 1.0 for pick in each.picks):
            return None
        files.append((name, paths))
    for name, paths in files:
        if not add_ranges(store, name, paths, found):
            return None
    found.setdefault("bad", []).append((0, int(any(_has_unread(each) for each in tables))))
    return found


def _has_unread(read: _Table) -> bool:
    """Tell whether a value of some rows is unread."""
    if read.all_read:
        return False
    return number_of(read.table.filter((read.table["bad"] & ROW_BITS) != 0).count()) > 0


def _all_numbers(raw: Any, floats: Sequence[Value]) -> bool:
    """Tell by their sums, which are quick, whether floats are all numbers."""
    if not floats:
        return True
    (row,) = rows_of(raw.aggregate(**{f"f{index}": each.sum() for index, each in enumerate(floats)}))
    return all(value is None or isfinite(value) for value in row.values())


# ---- Parquet

RANGED = ("prompt_tokens", "completion_tokens", "status", "ttft_ms", "duration_ms", "body_bytes", "started", "bad")


def add_ranges(store: Store, name: str, paths: Mapping[str, tuple[str, ...]], found: Ranges) -> bool:
    """Add what a Parquet file's statistics tell of its columns; False where they are silent, or may hide a NaN."""
    rows = store.run(
        f"""SELECT path_in_schema, any_value(type), min(stats_min_value), max(stats_min_value),
        min(TRY_CAST(stats_min_value AS DOUBLE)), max(TRY_CAST(stats_max_value AS DOUBLE)),
        min(TRY_CAST(stats_min_value AS TIMESTAMP)), max(TRY_CAST(stats_max_value AS TIMESTAMP)),
        count(*) FILTER (stats_min_value IS NULL AND coalesce(stats_null_count, -1) < num_values)
        FROM parquet_metadata({quoted(name)}) GROUP BY path_in_schema"""
    )
    told = {row[0]: row for row in rows}
    for column, path in paths.items():
        row = told.get(", ".join(path))
        if column not in RANGED:
            continue
        if row is None or row[8]:
            return False
        if row[2] is None:
            continue
        low, high = (row[6], row[7]) if column == "started" else (row[4], row[5])
        if low is None or high is None:
            return False
        found.setdefault(column, []).append((low, high))
    return True


def whole(store: Store, name: str) -> bool:
    """Tell whether every value of a Parquet file can be read."""
    try:
        store.run(f"SELECT hash(COLUMNS(*)) FROM read_parquet({quoted(name)}) QUALIFY false")
    except duckdb.Error:
        return False
    return True


def _parquet(store: Store, name: str, plan: Plan) -> Staged:
    if name in plan.broken:
        return Staged(Reading(name, formats.PARQUET, troubles=(cannot_be_read(EOFError()),)), None)
    size = Path(name).stat().st_size
    try:
        table = store.ibis.sql(f"SELECT * FROM read_parquet({quoted(name)})")
        rows = store.run(f"SELECT sum(num_rows) FROM parquet_file_metadata({quoted(name)})")[0][0]
        fields = fields_of_table(table)
    except (duckdb.Error, ibis.common.exceptions.IbisError) as error:
        return Staged(Reading(name, formats.PARQUET, bytes=size, troubles=(cannot_be_read(error),)), None)
    picked = pick(fields, plan.maps)
    picks = seen(picked)
    reading = with_picks(Reading(name, formats.PARQUET, rows=rows, lines=rows, bytes=size), picks)
    return Staged(with_naive_times(with_unseen(reading, picked), table, picks), None, picks)


def with_naive_times(reading: Reading, table: Any, picks: Sequence[Pick]) -> Reading:
    """Count the rows of a typed table whose times leave out their zone, or name a day alone: its types say so."""
    bits = _bits_of_columns(table, picks)
    said = [("no_zone", NO_ZONE)] if bits & NO_ZONE_OF_COLUMN_BIT else []
    said += [("day_only", DAY_ONLY)] if bits & DAY_ONLY_OF_COLUMN_BIT else []
    whole = "" if reading.rows else ", the whole column"
    troubles = tuple(Trouble(kind, max(reading.rows, 1), text + whole) for kind, text in said)
    return structs.replace(reading, troubles=(*reading.troubles, *troubles))


def _bits_of_columns(table: Any, picks: Sequence[Pick]) -> int:
    bits = 0
    for each in picks:
        if KINDS[each.column] == "time":
            bits |= column_bits(_at(table, each.path).type())
    return bits


def fields_of_table(table: Any) -> list[Field]:
    """Give a typed table's fields; of numbers some values too, from which a span's unit is told."""
    leaves: dict[tuple[str, ...], Value] = {}

    def enter(value: Value, path: tuple[str, ...]) -> None:
        dtype = value.type()
        if dtype.is_struct() and len(path) < formats.DEPTH_MAX:
            for name in dtype.names:
                enter(value[name], (*path, name))
        elif not dtype.is_array():
            leaves[path] = value

    for name in table.columns:
        enter(table[name], (name,))
    numbers = {path: value for path, value in leaves.items() if value.type().is_floating()}
    samples: dict[tuple[str, ...], tuple[str, ...]] = {}
    if numbers:
        chosen = table.select(**{f"f{index}": value for index, value in enumerate(numbers.values())}).head(200)
        rows = rows_of(chosen)
        for index, path in enumerate(numbers):
            samples[path] = tuple(str(row[f"f{index}"]) for row in rows if row[f"f{index}"] is not None)
    return [Field(path, samples.get(path, ())) for path in leaves]


def _parquet_tables(store: Store, found: Mapping[str, Staged], zone: str) -> list[_Table]:
    """Give a table for each group of files that are read alike."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, each in found.items():
        schema = store.ibis.sql(f"SELECT * FROM read_parquet({quoted(name)})").schema()
        groups.setdefault((tuple(schema.items()), each.picks), []).append(name)
    tables = []
    for (_schema, picks), names in groups.items():
        listed = ", ".join(quoted(name) for name in names)
        raw = store.ibis.sql(f"SELECT * FROM read_parquet([{listed}], filename='_file', file_row_number=true)")
        same = _constants(store, listed)

        def get(each: Pick, raw: Any = raw, same: Mapping[str, str] = same) -> Value:
            value, path = _at(raw, each.path), ", ".join(each.path)
            return ibis.literal(same[path]) if value.type().is_string() and path in same else value

        columns = typed(picks, get, Reader(zone))
        place = {"source_file": raw["_file"], "source_line": (raw["file_row_number"] + 1).cast("int64")}
        floats = only_floats(picks, get)
        all_read = floats is not None and _all_numbers(raw, floats)
        if all_read:
            # Told once, so that no other question reads the floats for it.
            columns["bad"] = ibis.literal(_bits_of_columns(raw, picks), "int64")
        tables.append(_Table(raw.select(**columns, **place), all_read))
    return tables


def _constants(store: Store, listed: str) -> dict[str, str]:
    """Give the columns of text that hold one value throughout some files, as their statistics tell.

    A short value: a writer may cut long ones in its statistics.
    """
    rows = store.run(
        f"""SELECT path_in_schema, min(stats_min_value) FROM parquet_metadata([{listed}]) GROUP BY path_in_schema
        HAVING min(stats_min_value) = max(stats_max_value) AND count(stats_min_value) = count(*)
        AND max(coalesce(stats_null_count, 1)) = 0 AND length(min(stats_min_value)) < {CONSTANT_CHARS_MAX}"""
    )
    return dict(rows)


def typed_table(raw: Any, picks: Sequence[Pick], reader: Reader, place: tuple[Value, Value]) -> Any:
    """Give a source's rows as requests; place: their file and line."""
    file, line = place
    columns = typed(picks, lambda each: _at(raw, each.path), reader)
    return raw.select(**columns, source_file=file, source_line=line.cast("int64"))


def _at(raw: Any, path: tuple[str, ...]) -> Value:
    value = raw[path[0]]
    for name in path[1:]:
        value = value[name]
    return value


def _staged_table(store: Store, staged: Staged) -> Any:
    raw = store.ibis.sql(f"SELECT * FROM read_parquet({quoted(str(staged.path))}, file_row_number=true)")
    raw = raw.filter(raw["kind"] == GOOD)
    line = raw["line"] if staged.has_lines else raw["file_row_number"] + staged.offset
    columns = {name: raw[name].cast(dtype) for name, dtype in {**REQUEST_COLUMNS, "bad": "int64"}.items()}
    return raw.select(**columns, source_file=ibis.literal(staged.reading.source), source_line=line.cast("int64"))
