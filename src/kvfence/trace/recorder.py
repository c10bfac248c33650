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
from kvfence.trace.record import SCHEMA, TraceHeader, TraceStep, summary_of

FLUSH_BYTES = 1 << 16


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
            self._sink.begin(TraceHeader(SCHEMA, role, node.lives.incarnation, absent, summary_of(node), observed))

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
        """Flush and close the sink."""
        if self._sink is not None:
            self._sink.close()


class TraceFile:
    """An NDJSON file of bounded size; at most twice ``bytes_max`` lie on disk.

    ``broken``: it could not be written and was given up; what lies on disk is the beginning of a trace.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._encoder = msgspec.json.Encoder()
        self._header = b""
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
        self._header = self._encoder.encode(header) + b"\n"
        self._append(self._header)

    def write(self, line: TraceStep) -> None:
        """Add one step."""
        self._append(self._encoder.encode(line) + b"\n")

    def _append(self, line: bytes) -> None:
        if self.broken:
            return
        if self._written + len(line) > self._bytes_max and self._written > len(self._header):
            self._rotate()
        self._pending.append(line)
        self._num_pending += len(line)
        self._written += len(line)
        if self._num_pending >= FLUSH_BYTES:
            self.flush()

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
        self._written = len(self._header)
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
