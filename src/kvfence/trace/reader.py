"""Reads a trace back, line by line, refusing what is not one.

Raises ``TraceError`` with the line's number; a truncated last line is said to be truncated.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvfence.core.errors import TraceError
from kvfence.trace.record import SCHEMA, TraceHeader, TraceLine, TraceStep


def read_trace(path: Path) -> tuple[TraceHeader, Iterator[TraceStep]]:
    """Give the header and the steps of a trace.

    Raises:
        TraceError: no header first, another schema, an unreadable or truncated line, a gap in the numbering.
    """
    decoder = msgspec.json.Decoder(TraceLine)
    lines = _lines(path, decoder)
    header = next(lines, None)
    if not isinstance(header, TraceHeader):
        raise TraceError(f"{path}: line 1 is not a trace header")
    if header.schema != SCHEMA:
        raise TraceError(f"{path}: schema {header.schema}, this build reads {SCHEMA}")
    return header, _steps(path, lines)


def _lines(path: Path, decoder: "msgspec.json.Decoder[TraceLine]") -> Iterator[TraceLine]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                raise TraceError(f"{path}: line {number} is truncated")
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise TraceError(f"{path}: line {number} is no trace line") from error


def _steps(path: Path, lines: Iterator[TraceLine]) -> Iterator[TraceStep]:
    last = 0
    for line in lines:
        if not isinstance(line, TraceStep):
            raise TraceError(f"{path}: a second header after step {last}")
        if last and line.n != last + 1:
            raise TraceError(f"{path}: step {line.n} follows step {last}")
        last = line.n
        yield line
