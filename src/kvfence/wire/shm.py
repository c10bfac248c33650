"""One-sided writes through shared memory: prefill maps decode's pool and stores into it.

Order. Head, body and tail of a record are separate copies, made in this order by one thread. On x86-64, stores
become visible to other cores in program order, and the string instructions that large copies use are not
reordered with the stores before and after them (only inside one copy may bytes appear in any order, which the
head does not need). Copies are kept small so that the C library does not turn to non-temporal stores, which are
exempt from that rule. On other machines (ARM among them) stores are reordered freely and Python offers no
barrier between two copies: there ``lands_in_order`` is False, and the comparison at read is a probe.

Fence. A stopped writer resumes where it stopped and finishes its record, however long ago its attempt was given
up: only its death, reaped by the supervisor, proves that the destination is quiet.
"""

import mmap
import platform
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from kvfence.core.ids import Incarnation
from kvfence.core.layout import KVLayout
from kvfence.core.limits import Limits
from kvfence.core.tags import HEAD_BYTES, TAIL_BYTES
from kvfence.protocol.transitions import Fence
from kvfence.wire.transport import PageBatch, check_batch

Records = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]
"""Called with (destination page, bytes of its record written so far) after each part of a record."""

COPY_BYTES_MAX = 64 << 10
"""Largest single copy, far below the size from which C libraries use non-temporal stores."""

_ORDERED_MACHINES = frozenset({"x86_64", "AMD64"})


class SharedMemoryTransport:
    """Writes from this process's pool into a mapped one; one write is one record.

    Holds:
        Views of both buffers; ``close`` lets them go.
    """

    fence = Fence.PEER_EXIT
    lands_in_order = platform.machine() in _ORDERED_MACHINES

    def __init__(
        self,
        source: bytearray | mmap.mmap,
        destination: bytearray | mmap.mmap,
        layout: KVLayout,
        decode: Incarnation,
        on_progress: Progress | None = None,
        *,
        batch_pages_max: int = Limits().batch_pages_max,
    ) -> None:
        self.decode = decode
        self.batch_pages_max = batch_pages_max
        self._source = _records(source, layout)
        self._destination = _records(destination, layout)
        self._parts = record_parts(layout)
        self._write_record = self._copy if on_progress is None else partial(self._copy_watched, on_progress)

    def write(self, batch: PageBatch) -> None:
        """Write the batch, head first in every record; see ``Transport.write``.

        Raises:
            TransportError: ``in_flight`` is "no": the copy is made by this thread, so nothing lands after it ends.
        """
        sizes = (len(self._source), len(self._destination))
        check_batch(batch, self.decode, sizes, self.batch_pages_max)
        for source, destination in zip(batch.source, batch.destination, strict=True):
            self._write_record(source, destination)

    def close(self) -> None:
        """Let both buffers go; further writes are refused."""
        self._source = self._destination = np.empty((0, 0), dtype=np.uint8)

    def _copy(self, source: int, destination: int) -> None:
        origin, target = self._source[source], self._destination[destination]
        for part in self._parts:
            target[part] = origin[part]

    def _copy_watched(self, on_progress: Progress, source: int, destination: int) -> None:
        origin, target = self._source[source], self._destination[destination]
        for part in self._parts:
            target[part] = origin[part]
            on_progress(destination, part.stop)


def record_parts(layout: KVLayout, copy_bytes_max: int = COPY_BYTES_MAX) -> tuple[slice, ...]:
    """Cut a record into the copies that write it, in landing order: head, pieces of the body, tail."""
    body = layout.body
    starts = range(body.start, body.stop, copy_bytes_max)
    pieces = [slice(start, min(start + copy_bytes_max, body.stop)) for start in starts]
    tail = slice(layout.tail_offset, layout.tail_offset + TAIL_BYTES)
    return (slice(0, HEAD_BYTES), *pieces, tail)


def _records(buffer: bytearray | mmap.mmap, layout: KVLayout) -> Records:
    num_pages = len(buffer) // layout.record_bytes
    count = num_pages * layout.record_bytes
    return np.frombuffer(buffer, dtype=np.uint8, count=count).reshape(num_pages, layout.record_bytes)
