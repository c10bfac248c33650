"""Text logs are read once, into Parquet of our own: typed columns, the kind of each line, its number.

Plain files go straight through DuckDB. What is packed, or what DuckDB cannot read, is first copied line by line, so
that damage costs the damaged lines alone and is counted. Read ``formats.py`` first.
"""

import codecs
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import ibis
from msgspec import Struct, structs

from kvfence.evidence.sources import UNREAD, Opened, open_source
from kvfence.scope import formats
from kvfence.scope.columns import UNSEEN, Field, Pick, pick
from kvfence.scope.formats import Damage
from kvfence.scope.json_lines import BLANK_LINE, BROKEN, GOOD, can_be_mended, count_lines, documents_of, fields_of
from kvfence.scope.relation import REQUEST_COLUMNS, Choice, Reading, Trouble
from kvfence.scope.store import Store
from kvfence.scope.values import Reader, Value, typed

HEAD_BYTES = 1 << 20
PACKED_BYTES_MIN = 18
"""A packed file that is whole and holds nothing has more; a shorter one was cut off."""
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_TROUBLES = {
    "not_json": "lines that are no JSON object",
    "line_too_long": "lines too long to be read",
    "not_utf8": "lines with bytes that are no UTF-8, read with those replaced",
    "control_bytes": "lines with control bytes, read with those replaced",
    "not_a_row": "rows that do not fit the header",
    "broken_off": f"the file {UNREAD}",
    "not_an_access_line": "lines that are no access log's",
    "request_line_unreadable": "request lines whose engine's part could not be read",
    "span_of_something_else": "spans of something else than generative AI",
    "cannot_be_read": "the file cannot be read",
    "no_column": "no column of a request was found",
    "empty": "the file is empty",
    "same_file": "the same file as {}, read once",
}


class Plan(Struct, frozen=True):
    """How logs are read.

    maps: ``--map``. year: of times that name none. parallel: with more than one thread a text. broken: files found to
    be damaged.
    """

    maps: Mapping[str, tuple[str, ...]] = {}
    zone: str = "UTC"
    year: int | None = None
    parallel: bool = True
    broken: frozenset[str] = frozenset()


class Staged(Struct, frozen=True):
    """A source that was opened. path: its staged rows, None where there are none, or where they lie in Parquet already.

    offset: from a row's place in the staged file to its line. has_lines: the rows carry their lines themselves.
    positions: the lines of each kind of damage, as far as they were kept.
    """

    reading: Reading
    path: Path | None
    picks: tuple[Pick, ...] = ()
    offset: int = 1
    has_lines: bool = False
    positions: Mapping[str, Sequence[int]] = {}


def head_of(name: str) -> bytes:
    """Give a file's first bytes; none of standard input."""
    if name == "-":
        return b""
    with open(name, "rb") as file:
        return file.read(8)


def stage_text(store: Store, name: str, plan: Plan) -> Staged:
    """Stage one text file; where it cannot be read at all its reading says so."""
    opened = open_source(name)
    try:
        return _text_opened(store, opened, plan)
    except (duckdb.Error, OSError) as error:
        return Staged(Reading(name, "text", troubles=(cannot_be_read(error),)), None)
    finally:
        opened.close()


def _text_opened(store: Store, opened: Opened, plan: Plan) -> Staged:
    name, damage = opened.name, Damage()
    head = opened.stream.peek(HEAD_BYTES)[:HEAD_BYTES] if name == "-" else _decoded_head(name)  # type: ignore[attr-defined]
    kind = formats.detect(head)
    shown = kind
    magic = head_of(name)
    packed = next((said for sign, said in _MAGIC.items() if magic.startswith(sign)), "")
    source, is_own = Path(name), False
    if kind in formats.TO_JSON_LINES:
        source, is_own = store.new_file("jsonl"), True
        with source.open("wb") as out:
            shown = formats.to_json_lines(kind, opened, out, damage, plan.year or _year_of(name))
        kind = formats.JSON_LINES
    elif packed or name == "-" or head.startswith(codecs.BOM_UTF8):
        source, is_own = _mended(store, opened, damage, kind), True
    reading = Reading(name, shown, packed, bytes=Path(name).stat().st_size if name != "-" else None)
    staged = _stage_or_mend(store, (source, is_own), kind, (opened, damage), (reading, plan))
    if is_own:
        source.unlink(missing_ok=True)
    return _with_damage(staged, damage, opened)


def _decoded_head(name: str) -> bytes:
    opened = open_source(name)
    try:
        return next((block.data[:HEAD_BYTES] for block in opened.blocks()), b"")
    finally:
        opened.close()


def _mended(store: Store, opened: Opened, damage: Damage, kind: str) -> Path:
    path = store.new_file("text")
    with path.open("wb") as out:
        formats.mend(opened, out, damage, BLANK_LINE if kind == formats.JSON_LINES else b"")
    return path


def _stage_or_mend(
    store: Store, where: tuple[Path, bool], kind: str, raw: tuple[Opened, Damage], said: tuple[Reading, Plan]
) -> Staged:
    """Stage a text; where not every line could be read as it is, from a copy in which it can."""
    source, is_own = where
    try:
        staged = _stage_lines(store, source, kind, *said)
        if is_own or kind != formats.JSON_LINES or _is_all(store, source, staged):
            return staged
    except duckdb.Error:
        if is_own:
            raise
    mended = _mended(store, *raw, kind)
    try:
        return _stage_lines(store, mended, kind, *said)
    finally:
        mended.unlink(missing_ok=True)


def _is_all(store: Store, source: Path, staged: Staged) -> bool:
    """Tell whether a text's rows are its lines, and none of those that are broken could have been mended."""
    if staged.reading.lines != count_lines(source):
        return False
    if staged.reading.rows == staged.reading.lines:
        return True
    broken = store.run(
        f"SELECT file_row_number + 1 FROM read_parquet({quoted(str(staged.path))}, file_row_number=true) "
        f"WHERE kind = {BROKEN}"
    )
    return not can_be_mended(source, [row[0] for row in broken])


def _stage_lines(store: Store, source: Path, kind: str, reading: Reading, plan: Plan) -> Staged:
    """Stage a text with all threads, or with one where DuckDB's parallel reader cannot cut this text as it wants."""
    if kind != formats.CSV:
        return _stage_json(store, source, kind, reading, plan)
    try:
        return _stage_csv(store, source, reading, plan)
    except duckdb.NotImplementedException:
        return _stage_csv(store, source, reading, structs.replace(plan, parallel=False))


def _stage_json(store: Store, source: Path, kind: str, reading: Reading, plan: Plan) -> Staged:
    documents = documents_of(quoted(source), kind == formats.JSON_DOCUMENT)
    fields = formats.fields_of_json(iter(_sample_lines(store, source, kind, documents)))
    picks = tuple(pick(fields, plan.maps))
    reading = with_unseen(reading, picks)
    has_lines = any(field.path == ("_line",) for field in fields)
    paths = [each.path for each in picks] + ([("_line",)] if has_lines else [])
    listed = ", ".join(quoted(_json_path(path)) for path in paths) or "'$'"
    raw = _Layers(fields_of(documents, listed, len(paths)), len(paths))
    line = raw.table[f"f{len(picks)}"].try_cast("int64") if has_lines else ibis.null("int64")
    return _write_staged(store, raw, (picks, line), reading, plan)


class _Layers:
    """Statements one upon the other: what one of them works out is a column for the next.

    DuckDB works an expression out wherever it stands; only a column it works out once.
    """

    def __init__(self, statement: str, num_fields: int) -> None:
        self.statements = [statement]
        self.kept = ["kind"]
        schema = {"kind": "int32", **{f"f{index}": "string" for index in range(num_fields)}}
        self.table: Any = ibis.table(schema, name="layer0")

    def settle(self, named: Mapping[str, Value]) -> Mapping[str, Value]:
        """Add a layer with these columns, and those that are kept."""
        expression = self.table.select(*self.kept, **named)
        self.statements.append(ibis.to_sql(expression, dialect="duckdb"))
        self.table = ibis.table(expression.schema(), name=f"layer{len(self.statements) - 1}")
        return {name: self.table[name] for name in named}

    def sql(self) -> str:
        """Give the last layer with all below it."""
        below = ", ".join(f"layer{index} AS ({each})" for index, each in enumerate(self.statements[:-1]))
        return f"WITH {below} {self.statements[-1]}"


def _sample_lines(store: Store, source: Path, kind: str, lines: str) -> list[str]:
    """Give some lines from the beginning, the middle and the end of a text."""
    if kind == formats.JSON_DOCUMENT:
        return [row[0] for row in store.run(f"SELECT line FROM ({lines}) LIMIT 500")]
    size = source.stat().st_size
    found: list[str] = []
    with source.open("rb") as file:
        for start in sorted({0, size // 2, max(0, size - HEAD_BYTES // 4)}):
            file.seek(start)
            pieces = file.read(HEAD_BYTES if start == 0 else HEAD_BYTES // 4).split(b"\n")
            found += [piece.decode("utf-8", "replace") for piece in pieces[1 if start else 0 : 1000]]
    return found


def _json_path(path: tuple[str, ...]) -> str:
    return "$" + "".join(f'."{name}"' for name in path)


def _stage_csv(store: Store, source: Path, reading: Reading, plan: Plan) -> Staged:
    options = "all_varchar=true, header=true, ignore_errors=true, sample_size=2000, strict_mode=false, "
    options += f"parallel={plan.parallel}"
    fields = [Field((name,)) for name in store.ibis.sql(f"SELECT * FROM read_csv({quoted(source)}, {options})").columns]
    sample = store.run(f"SELECT * FROM read_csv({quoted(source)}, {options}) LIMIT 200")
    fields = [
        structs.replace(field, samples=tuple(str(row[index])[:64] for row in sample if row[index] is not None))
        for index, field in enumerate(fields)
    ]
    picked = pick(fields, plan.maps)
    picks, reading = seen(picked), with_unseen(reading, picked)
    table = "rejects_" + store.new_file("csv").stem
    chosen = ", ".join(f"{_name(each.path[0])} AS f{index}" for index, each in enumerate(picks)) or "1"
    raw = _Layers(
        f"SELECT {GOOD} AS kind, {chosen} "
        f"FROM read_csv({quoted(source)}, {options}, store_rejects=true, rejects_limit=0, "
        f"rejects_table='{table}_errors', rejects_scan='{table}_scans')",
        len(picks),
    )
    staged = _write_staged(store, raw, (picks, ibis.null("int64")), reading, plan)
    rejected = [row[0] for row in store.run(f"SELECT DISTINCT line FROM {table}_errors ORDER BY 1")]
    if not rejected:
        return structs.replace(staged, offset=2)
    trouble = Trouble("not_a_row", len(rejected), _TROUBLES["not_a_row"], rejected[0])
    found = structs.replace(staged.reading, troubles=(*staged.reading.troubles, trouble))
    positions = {**staged.positions, "not_a_row": rejected[: formats.POSITIONS_MAX]}
    return structs.replace(staged, reading=found, offset=2, positions=positions)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _write_staged(
    store: Store, raw: _Layers, what: tuple[tuple[Pick, ...], Value], reading: Reading, plan: Plan
) -> Staged:
    picks, line = what
    raw.settle({"line": line, **{f"f{index}": raw.table[f"f{index}"] for index in range(len(picks))}})
    raw.kept.append("line")
    columns = typed(picks, lambda each: raw.table[f"f{picks.index(each)}"], Reader(plan.zone), raw.settle)
    raw.settle(columns)
    path = store.new_file("parquet")
    statement = (
        f"COPY ({raw.sql()}) TO {quoted(path)} "
        "(FORMAT parquet, COMPRESSION uncompressed, PRESERVE_ORDER true)"  # a row's place is its line
    )
    store.run(statement, f"reading {reading.source}")
    counts = store.run(
        f"SELECT count(*), count(*) FILTER (kind = {GOOD}), count(*) FILTER (kind = {BROKEN}) FROM "
        f"read_parquet({quoted(path)})"
    )[0]
    broken = []
    if counts[2]:
        broken = store.run(
            f"SELECT file_row_number + 1 FROM read_parquet({quoted(path)}, file_row_number=true) "
            f"WHERE kind = {BROKEN} ORDER BY 1 LIMIT {formats.POSITIONS_MAX}"
        )
    troubles = (Trouble("not_json", counts[2], _TROUBLES["not_json"], broken[0][0]),) if counts[2] else ()
    found = structs.replace(reading, rows=counts[1], lines=counts[0], troubles=(*reading.troubles, *troubles))
    return Staged(
        with_picks(found, picks),
        path,
        picks,
        positions={"not_json": [row[0] for row in broken]},
        has_lines=not isinstance(line.op(), ibis.expr.operations.Literal),
    )


def quoted(text: str | Path) -> str:
    """Write a text as a literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _year_of(name: str) -> int:
    return datetime.fromtimestamp(Path(name).stat().st_mtime, UTC).year if name != "-" else datetime.now(UTC).year


def cannot_be_read(error: Exception) -> Trouble:
    """Say that a file cannot be read, and of which kind the error is; its text may quote the file."""
    return Trouble("cannot_be_read", 1, f"{_TROUBLES['cannot_be_read']} ({type(error).__name__})")


def seen(picks: Sequence[Pick]) -> tuple[Pick, ...]:
    """Leave the fields that a table has: a table's columns are known, and others cannot be asked for."""
    return tuple(each for each in picks if each.how != UNSEEN)


def with_unseen(reading: Reading, picks: Sequence[Pick]) -> Reading:
    """Add what ``--map`` names and no line was seen to have."""
    found = [
        Trouble("map_not_there", 1, f"--map {each.column}={each.shown}: {UNSEEN.partition(' and ')[2]}")
        for each in picks
        if each.how == UNSEEN
    ]
    return structs.replace(reading, troubles=(*reading.troubles, *found))


def read_already(name: str, other: str) -> Reading:
    """Say that a file is another one by another name."""
    return Reading(name, "", troubles=(Trouble("same_file", 1, _TROUBLES["same_file"].format(other)),))


def with_picks(reading: Reading, picks: Sequence[Pick]) -> Reading:
    """Give a reading with the fields that were chosen, and what is missing."""
    choices = tuple(Choice(each.column, each.shown, each.how) for each in picks)
    missing = tuple(column for column in REQUEST_COLUMNS if column not in {each.column for each in picks})
    troubles = reading.troubles
    is_cut = reading.compression and (reading.bytes or 0) < PACKED_BYTES_MIN
    if not picks and reading.format == formats.JSON_LINES and not (reading.rows or troubles or is_cut):
        return structs.replace(reading, troubles=(Trouble("empty", 1, _TROUBLES["empty"]),))
    if not picks:
        troubles = (*troubles, Trouble("no_column", 1, _TROUBLES["no_column"] + "; name one by --map COLUMN=FIELD"))
    return structs.replace(reading, choices=choices, missing=missing, troubles=troubles)


def _with_damage(staged: Staged, damage: Damage, opened: Opened) -> Staged:
    found = [
        Trouble(kind, count, _TROUBLES.get(kind, kind), damage.first(kind)) for kind, count in damage.counts.items()
    ]
    found += [Trouble("broken_off", 1, problem) for problem in dict.fromkeys(opened.problems)]
    reading = structs.replace(staged.reading, troubles=(*staged.reading.troubles, *found))
    return structs.replace(staged, reading=reading, positions={**staged.positions, **damage.positions})
