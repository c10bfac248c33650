"""What kind of log a file is, told from its bytes, and the kinds that are turned into JSON lines first.

Whatever is damaged is counted: an over-long line, a byte that is no UTF-8, a compressed file that breaks off. Not for:
which field is what (``columns.py``), JSON lines, CSV and Parquet that DuckDB reads as they are (``ingest.py``).
"""

import json
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

import msgspec
from msgspec import Struct

from kvfence.evidence.sources import Block, Opened
from kvfence.scope.access_logs import access_row
from kvfence.scope.columns import Field, plain_name
from kvfence.scope.engine_logs import EngineLog, Row
from kvfence.scope.spans import is_otlp, span_rows

LINE_BYTES_MAX = 1 << 25
"""A longer line is left out and counted: no request needs so much, and memory stays bounded."""
HEAD_LINES = 400
DEPTH_MAX = 5
SAMPLES_MAX = 20
SAMPLE_CHARS_MAX = 64
PARQUET, JSON_LINES, JSON_DOCUMENT, CSV, OTLP, ACCESS, ENGINE = (
    "Parquet",
    "JSON lines",
    "JSON document",
    "CSV",
    "OpenTelemetry spans",
    "access log",
    "engine log",
)
TO_JSON_LINES = frozenset({OTLP, ACCESS, ENGINE})
_UNCLEAN = re.compile(rb"[\x00\x01\r]")
_CLEAN = bytes.maketrans(b"\x00\x01\r", b"   ")
_CSV_HEADER = re.compile(r"^[\w \"'.@/-]{1,80}([,;\t|])[\w \"'.@/-]{1,80}(?:\1[\w \"'.@/-]{0,80})*$")


POSITIONS_MAX = 100_000
"""Damaged lines of one kind and file whose places are kept."""


class Damage(Struct):
    """Counts of what could not be read, by kind, and the lines where it was seen, at most ``POSITIONS_MAX``."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    positions: dict[str, list[int]] = {}

    def add(self, kind: str, line: int) -> None:
        """Count one more."""
        self.counts[kind] += 1
        held = self.positions.setdefault(kind, [])
        if len(held) < POSITIONS_MAX:
            held.append(line)

    def first(self, kind: str) -> int | None:
        """Give the line where a kind was first seen."""
        return self.positions[kind][0] if kind in self.positions else None


def detect(head: bytes) -> str:
    """Tell a text's format from its first bytes."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    lines = [line for line in text.splitlines()[:HEAD_LINES] if line.strip()]
    if not lines:
        return JSON_LINES
    objects = [value for line in lines[:50] if isinstance(value := _json(line), dict)]
    if any(is_otlp(value) for value in objects) or '"resourceSpans"' in text[:4096]:
        return OTLP
    if objects and len(objects) * 2 >= len(lines[:50]) - 1:
        return JSON_LINES
    if text.startswith("{") and '"' in text[:20]:
        return JSON_DOCUMENT if lines[0].strip() in {"{", "["} else JSON_LINES
    if text.startswith("[") and re.match(r"\[\s*(?:\{|$)", text):
        return JSON_DOCUMENT
    rows = sum(access_row(line) is not None for line in lines[:50])
    if rows * 2 >= len(lines[:50]):
        return ACCESS
    return CSV if _CSV_HEADER.match(lines[0]) else ENGINE


def fields_of_json(lines: Iterator[str]) -> list[Field]:
    """Give the fields of some JSON lines: their paths, and some of their values; lists are not entered."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        value = _json(line)
        if isinstance(value, dict):
            _flatten(value, (), seen)
    return [Field(path, tuple(samples)) for path, samples in seen.items()]


def _flatten(value: dict[str, object], path: tuple[str, ...], seen: dict[tuple[str, ...], list[str]]) -> None:
    for key, inner in value.items():
        if len(key) > 80 or any(character in key for character in '"\\') or not key.isprintable():
            continue
        here = (*path, key)
        if isinstance(inner, dict):
            if len(here) < DEPTH_MAX and plain_name(key) not in {"messages", "prompt"}:
                _flatten(inner, here, seen)
        elif not isinstance(inner, list):
            samples = seen.setdefault(here, [])
            if inner is not None and len(samples) < SAMPLES_MAX:
                samples.append(str(inner)[:SAMPLE_CHARS_MAX])


def _json(line: str) -> object:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def whole_lines(blocks: Iterator[Block], damage: Damage) -> Iterator[tuple[int, bytes]]:
    """Give each line with its number, whole and without its end; an over-long one is empty and counted."""
    carry: list[bytes] = []
    carried, number = 0, 1
    for block in blocks:
        for index, piece in enumerate(block.data.split(b"\n")):
            if index:
                yield number, _joined(carry, carried, number, damage)
                number, carry, carried = number + 1, [], 0
            carried += len(piece)
            if carried <= LINE_BYTES_MAX:
                carry.append(piece)
    if carried:
        yield number, _joined(carry, carried, number, damage)


def _joined(carry: list[bytes], carried: int, number: int, damage: Damage) -> bytes:
    if carried > LINE_BYTES_MAX:
        damage.add("line_too_long", number)
        return b""
    return b"".join(carry).rstrip(b"\r")


def is_damaged(number: int, line: bytes) -> bool:
    """Tell whether ``mend`` would change a line."""
    line = line.rstrip(b"\r\n")
    if _UNCLEAN.search(line) or (number == 1 and line.startswith(BOM_UTF8)):
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return False


def mend(opened: Opened, out: BinaryIO, damage: Damage, blank: bytes = b"") -> None:
    """Copy a text line by line, so that every line can be read: valid UTF-8, no control bytes, bounded.

    blank: what is written for a line in which nothing stands.
    """
    for number, line in whole_lines(opened.blocks(), damage):
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if not line.isascii():
            try:
                line.decode()
            except UnicodeDecodeError:
                damage.add("not_utf8", number)
                line = line.decode("utf-8", "replace").encode()
        if _UNCLEAN.search(line):
            damage.add("control_bytes", number)
            line = line.translate(_CLEAN)
        out.write((line if line.strip() else blank) + b"\n")


def to_json_lines(kind: str, opened: Opened, out: BinaryIO, damage: Damage, year: int) -> str:
    """Write a text log's requests as JSON lines, each with its ``_line``; give what is to be shown of the format."""
    if kind == OTLP:
        for number, document in _documents(opened, damage):
            for row in span_rows(document):
                if row is None:
                    damage.add("span_of_something_else", number)
                else:
                    _write(out, row, number, damage)
        return kind
    log = EngineLog(year)
    for number, raw in whole_lines(opened.blocks(), damage):
        line = raw.decode("utf-8", "replace")
        rows = _access_rows(line) if kind == ACCESS else list(log.read(line))
        if rows is None:
            damage.add("not_an_access_line", number)
        if log.unreadable > damage.counts["request_line_unreadable"]:
            damage.add("request_line_unreadable", number)
        for row in rows or ():
            _write(out, row, number, damage)
    for row in log.rest():
        _write(out, row, None, damage)
    return f"{log.engine} request log" if log.engine else kind


def _access_rows(line: str) -> list[Row] | None:
    if not line.strip():
        return []
    row = access_row(line)
    return None if row is None else [row]


def _documents(opened: Opened, damage: Damage) -> Iterator[tuple[int, dict[str, object]]]:
    """Give the batches of an OTLP file: one a line, or the whole file as one."""
    held: list[tuple[int, bytes]] = []
    for number, line in whole_lines(opened.blocks(), damage):
        value = _json(line.decode("utf-8", "replace")) if line.strip() else None
        if is_otlp(value) and isinstance(value, dict):
            yield number, value
        elif line.strip():
            held.append((number, line))
    if held:
        whole = _json(b"\n".join(line for _number, line in held).decode("utf-8", "replace"))
        if is_otlp(whole) and isinstance(whole, dict):
            yield 1, whole
        else:
            for number, _line in held:
                damage.add("not_json", number)


def _write(out: BinaryIO, row: Row, line: int | None, damage: Damage) -> None:
    kept = {name: value for name, value in row.items() if value is not None}
    if any(isinstance(value, str) and "\ufffd" in value for value in kept.values()):
        damage.add("not_utf8", line or 1)
    out.write(json.dumps({**kept, "_line": line}, default=str).encode() + b"\n")
