"""Reads a trace back, line by line, refusing what is not one.

Raises ``TraceError`` with the line's number; a truncated last line is said to be truncated. A file that its recorder
began anew when it was full is read after the one that was kept, ``.1``, as one trace.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from kvfence.core.errors import TraceError
from kvfence.trace.record import SCHEMA, TraceEnd, TraceHeader, TraceLine, TraceStep, unsealed

LINE_BYTES_MAX = 1 << 26
"""Beyond it a line is not read: a million pages, named once, are 8 MB. Without it one file could fill the memory."""


class _SchemaOnly(msgspec.Struct):
    """As much of a header as every schema has."""

    schema: int


class TraceReader:
    """One trace: its files, the oldest first. ``watch``: is told the bytes of every line, for progress.

    Holds: ``header``; ``ended`` once the steps were read to the end that the recorder wrote.
    """

    def __init__(self, *paths: Path, watch: Callable[[int], None] = lambda _: None) -> None:
        self.paths = paths
        self.ended = False
        self._watch = watch
        self._decoder = msgspec.json.Decoder(TraceLine)
        self._files = [self._lines(path) for path in paths]
        headers = [self._header_of(path, lines) for path, lines in zip(paths, self._files, strict=True)]
        if any(a != b for a, b in pairwise(headers)):
            raise TraceError(f"{paths[-1]}: the file kept beside it has another header")
        self.header = headers[-1]

    def _header_of(self, path: Path, lines: Iterator[TraceLine]) -> TraceHeader:
        header = next(lines, None)
        if not isinstance(header, TraceHeader):
            raise TraceError(f"{path}: line 1 is not a trace header")
        return header

    def _lines(self, path: Path) -> Iterator[TraceLine]:
        total = 0
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, LINE_BYTES_MAX), b""), 1):
                if not line.endswith(b"\n"):
                    what = "truncated" if len(line) < LINE_BYTES_MAX else f"longer than {LINE_BYTES_MAX >> 20} MiB"
                    raise TraceError(f"{path}: line {number} is {what}")
                if number == 1:
                    _require_schema(path, line)
                read = unsealed(line, total)
                if read is None:
                    raise TraceError(f"{path}: line {number} is not as it was written: edited, moved or damaged")
                body, total = read
                self._watch(len(line))
                try:
                    yield self._decoder.decode(body)
                except (msgspec.MsgspecError, RecursionError) as error:
                    raise TraceError(f"{path}: line {number} is no trace line") from error

    def steps(self) -> Iterator[TraceStep]:
        """Give every step, in order.

        Raises:
            TraceError: an unreadable or truncated line, a second header, a gap in the numbering, a line after the end.
        """
        last = 0
        for path, lines in zip(self.paths, self._files, strict=True):
            for line in lines:
                if self.ended or isinstance(line, TraceHeader):
                    raise TraceError(f"{path}: a second header, or a line after the end, after step {last}")
                if isinstance(line, TraceEnd):
                    self._end(path, line, last)
                    continue
                if last and line.n != last + 1:
                    raise TraceError(f"{path}: step {line.n} follows step {last}")
                last = line.n
                yield line

    def _end(self, path: Path, line: TraceEnd, last: int) -> None:
        if line.n != last:
            raise TraceError(f"{path}: it ends after step {line.n}, but step {last} is the last one there")
        self.ended = True


def parts_of(path: Path) -> tuple[Path, ...]:
    """Give the files of a trace, the oldest first: the one that was kept when it was full, if any, and itself."""
    kept = path.with_name(path.name + ".1")
    return (kept, path) if kept.exists() else (path,)


def read_trace(path: Path) -> tuple[TraceHeader, Iterator[TraceStep]]:
    """Give the header and the steps of one file, whether its recorder has ended it or not.

    Raises:
        TraceError: no header first, another schema, an unreadable or truncated line, a gap in the numbering.
    """
    reader = TraceReader(path)
    return reader.header, reader.steps()


def _require_schema(path: Path, line: bytes) -> None:
    """Say that a header is of another schema before anything in it is found wrong."""
    try:
        schema = msgspec.json.decode(line, type=_SchemaOnly).schema
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{path}: line 1 is not a trace header") from error
    if schema != SCHEMA:
        raise TraceError(f"{path}: schema {schema}, this build reads {SCHEMA}")
