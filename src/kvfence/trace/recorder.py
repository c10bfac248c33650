"""Wraps ``step`` and writes down each one, so that no driver can forget a line.

Bounded: a file that reaches its limit is kept once as ``.1`` and begun anew, header first. A file that cannot be
written, on a full disk say, ends there, and serving goes on.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvfence.protocol.events import Event
from kvfence.protocol.guards import Rules
from kvfence.protocol.step import Node, Step, step
from kvfence.trace.record import SCHEMA, TraceEnd, TraceHeader, TraceStep, sealed_line, start_of

FLUSH_BYTES = 1 << 16
SUM_BYTES_MAX = 20
"""What a line's sum and its end add to it."""


class Recorder:
    """Steps a node and records it into a sink; without a sink it only steps."""

    def __init__(self, sink: "TraceFile | None", clock_ns: Callable[[], int]) -> None:
        self._sink = sink
        self._clock_ns = clock_ns
        self._n = 0

    def begin(self, rules: Rules, role: str, node: Node) -> None:
        """Write the header."""
        if self._sink is not None:
            absent, observed = tuple(sorted(rules.absent)), tuple(sorted(rules.observed))
            self._sink.begin(TraceHeader(SCHEMA, role, node.lives.incarnation, absent, start_of(node), observed))

    def step(self, rules: Rules, node: Node, event: Event) -> Step:
        """Step the node and record what came of it."""
        result = step(rules, node, event)
        if self._sink is not None:
            self._n += 1
            self._sink.write(TraceStep(self._n, self._clock_ns(), event, result.commands, result.decisions))
        return result

    @property
    def broken(self) -> bool:
        """Was the sink given up?"""
        return self._sink is not None and self._sink.broken

    def flush(self) -> None:
        """Push buffered lines to the file."""
        if self._sink is not None:
            self._sink.flush()

    def close(self) -> None:
        """Say that this was all, and close the sink."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.end(self._n)
            sink.close()


class TraceFile:
    """An NDJSON file of bounded size; at most twice ``bytes_max`` lie on disk.

    ``broken``: it could not be written and was given up; what lies on disk is the beginning of a trace.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._encoder = msgspec.json.Encoder()
        self._header = b""
        self._sum = self._header_sum = 0
        self._pending: list[bytes] = []
        self._num_pending = 0
        self._written = 0
        self.broken = False
        self._file: BinaryIO = self._open()

    def _open(self) -> BinaryIO:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        return os.fdopen(fd, "wb", buffering=0)

    def begin(self, header: TraceHeader) -> None:
        """Write the header, and again at the start of each later file."""
        self._header, self._header_sum = sealed_line(self._encoder.encode(header), 0)
        self._write(self._header)
        self._sum, self._written = self._header_sum, len(self._header)

    def write(self, line: TraceStep | TraceEnd) -> None:
        """Add one step, or the end."""
        if self.broken:
            return
        body = self._encoder.encode(line)
        if self._written + len(body) + SUM_BYTES_MAX > self._bytes_max and self._written > len(self._header):
            self._rotate()
        sealed, self._sum = sealed_line(body, self._sum)
        self._pending.append(sealed)
        self._num_pending += len(sealed)
        self._written += len(sealed)
        if self._num_pending >= FLUSH_BYTES:
            self.flush()

    def end(self, n: int) -> None:
        """Say that step ``n`` was the last, where anything was begun."""
        if self._header:
            self.write(TraceEnd(n))

    def _rotate(self) -> None:
        self.flush()
        try:
            os.replace(self._path, self._path.with_name(self._path.name + ".1"))
            fresh = self._open()
        except OSError as error:
            self._give_up(error)
            return
        self._file.close()
        self._file = fresh
        self._written, self._sum = len(self._header), self._header_sum
        self._write(self._header)

    def flush(self) -> None:
        """Write out what is pending."""
        if self._pending:
            self._write(b"".join(self._pending))
            self._pending.clear()
            self._num_pending = 0

    def _write(self, data: bytes) -> None:
        """Write all of it; a disk that fills may take a part first."""
        rest = memoryview(data)
        try:
            while rest and not self.broken:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.broken = True
        with contextlib.suppress(OSError):  # the log may lie on the same full disk
            sys.stderr.write(f"trace {self._path}: not written any more ({error.strerror}); serving goes on\n")

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._file.close()
