"""``--as-of``: the logs as they were at an earlier time, so that an earlier report comes out again, byte for byte.

A request has its time. What has none (a line that cannot be read, a row without a time, an empty file) was there by
then if it stands before every later request, or if its file was not written to since; it was not if it stands behind
one. In between nobody can tell: then there is no report, and the error names the place. Logs only grow at their ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ibis
from msgspec import Struct, structs

from kvfence.core.errors import EvidenceError
from kvfence.scope.ingest import Sources
from kvfence.scope.relation import Reading, Trouble
from kvfence.scope.store import rows_of
from kvfence.scope.survey import TIME_MIN
from kvfence.scope.values import Value

_OF_COLUMNS = frozenset({"no_zone", "day_only"})
_OF_NAMES = frozenset({"same_file", "map_not_there"})
"""What depends on the command, and not on when."""
FILES_MAX = 1_000
"""Files of which some rows without a time are left out."""


class _Borders(Struct, frozen=True):
    """A file's lines around a moment: the last one from before, the first one from after, and those without a time."""

    rows: int
    last: int | None
    later: int | None
    untimed: int
    untimed_lines: tuple[int, ...] = ()

    def keeps(self, line: int) -> bool | None:
        """Tell whether an undated line was there by then; None where that cannot be told."""
        if self.last is not None and line < min(self.last, self.later or self.last):
            return True
        if self.later is not None and line > max(self.later, self.last or 0):
            return False
        return None


def as_of(source: Any, sources: Sources, moment: datetime) -> tuple[Any, Sources]:
    """Leave of the logs what was there at a moment.

    Raises:
        EvidenceError: of something without a time it cannot be told whether it was there.
    """
    borders = _borders(source, moment)
    readings: dict[str, Reading] = {}
    cut: dict[str, int] = {}
    for name, reading in sources.readings.items():
        found = borders.get(name, _Borders(0, None, None, 0))
        if _untouched_since(name, moment):
            troubles = reading.troubles
        else:
            _decide_rows(name, found, name in sources.parquet, cut, moment)
            troubles = tuple(_decided(reading, found, sources.positions.get(name, {}), moment))
        rows = found.rows - sum(found.keeps(line) is False for line in found.untimed_lines if name in cut)
        if rows or not (reading.rows or found.later is not None):
            readings[name] = structs.replace(reading, rows=rows, troubles=_recounted(troubles, rows))
    timed = (source["started"] >= TIME_MIN) & (source["started"] <= moment)
    untimed = (source["started"].isnull() | (source["started"] < TIME_MIN)).fill_null(True)
    for name, line in cut.items():
        untimed = untimed & ~((source["source_file"] == name) & (source["source_line"] > line)).fill_null(False)
    return source.filter(timed.fill_null(False) | untimed), structs.replace(sources, readings=readings)


def _borders(source: Any, moment: datetime) -> dict[str, _Borders]:
    untimed = (source["started"].isnull() | (source["started"] < TIME_MIN)).fill_null(True)
    before, line = ~untimed & (source["started"] <= moment).fill_null(False), source["source_line"]
    nothing = ibis.null("int64")
    counted = source.group_by("source_file").aggregate(
        rows=(before | untimed).sum(),
        last=ibis.ifelse(before, line, nothing).max(),
        later=ibis.ifelse(~before & ~untimed, line, nothing).min(),
        is_later=(~before & ~untimed).any(),
        untimed=untimed.sum(),
    )
    rows = rows_of(counted)
    lines: dict[str, list[int]] = {}
    if any(row["untimed"] for row in rows):
        for row in _untimed_lines(source, untimed):
            lines.setdefault(row["source_file"], []).append(row["source_line"])
    return {
        row["source_file"]: _Borders(
            int(row["rows"]), row["last"], row["later"] if row["is_later"] else None, int(row["untimed"]),
            tuple(lines.get(row["source_file"], ())),
        )
        for row in rows
    }  # fmt: skip


def _untimed_lines(source: Any, untimed: Value) -> list[dict[str, Any]]:
    chosen = source.filter(untimed & source["source_line"].notnull()).select("source_file", "source_line")
    return rows_of(chosen.order_by("source_file", "source_line"))


def _untouched_since(name: str, moment: datetime) -> bool:
    try:
        return Path(name).stat().st_mtime <= moment.replace(tzinfo=UTC).timestamp()
    except OSError:
        return False


def _decide_rows(name: str, found: _Borders, is_unit: bool, cut: dict[str, int], moment: datetime) -> None:
    """Find the line behind which rows without a time came later. A Parquet file is written as one."""
    if not found.untimed or (is_unit and found.later is None and found.last is not None):
        return
    kept = [found.keeps(line) for line in found.untimed_lines]
    if is_unit or None in kept or len(kept) < found.untimed:
        raise _untold(name, moment, f"{found.untimed:,} requests without a time", found)
    if False in kept:
        cut[name] = max(found.later or 0, found.last or 0)
    if len(cut) > FILES_MAX:
        raise EvidenceError(f"--as-of: more than {FILES_MAX:,} files have requests without a time; name fewer")


def _decided(
    reading: Reading, found: _Borders, positions: Mapping[str, Sequence[int]], moment: datetime
) -> Iterator[Trouble]:
    """Leave of what could not be read what was there by then."""
    for each in reading.troubles:
        lines = positions.get(each.kind, ())
        if each.kind in _OF_COLUMNS | _OF_NAMES or (not lines and found.last is not None and found.later is None):
            yield each
            continue
        kept = [found.keeps(line) for line in lines]
        if None in kept or len(kept) < each.count:
            raise _untold(reading.source, moment, each.text, found)
        there = [line for line, keep in zip(lines, kept, strict=True) if keep]
        if there:
            yield structs.replace(each, count=len(there), first=there[0])


def _recounted(troubles: Sequence[Trouble], rows: int) -> tuple[Trouble, ...]:
    """Count what a column's type says of every row by the rows that are left."""
    return tuple(structs.replace(each, count=rows) if each.kind in _OF_COLUMNS else each for each in troubles)


def _untold(name: str, moment: datetime, what: str, found: _Borders) -> EvidenceError:
    how = f"cut it behind line {found.last:,}, or leave it out" if found.last is not None else "leave it out"
    return EvidenceError(
        f"--as-of {moment:%Y-%m-%dT%H:%M:%S}Z: {name}: {what}: nothing tells whether that was there by then, and the "
        f"file was written to since; {how} if it was not"
    )
