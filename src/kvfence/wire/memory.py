"""Page writes inside one process, for tests and simulation: whole at receipt, or part by part to tear them.

Needs no numpy, so that simulations run in the light install. Not for: live workers (``shm.py``).
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from kvfence.core.errors import TransportError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.layout import KVLayout
from kvfence.core.limits import Limits
from kvfence.core.tags import HEAD_BYTES, TAIL_BYTES
from kvfence.protocol.transitions import Fence
from kvfence.wire.transport import PageBatch, check_batch

Accept = Callable[[int, AttemptId, Incarnation], bool]
"""Asked by the receiver for each page, with the attempt and the incarnation the write is for, as it copies."""


class Target(Struct, frozen=True):
    """What the receiver checks a write by."""

    page: int
    attempt: AttemptId
    decode: Incarnation


class PageWrite:
    """One posted record that has not landed yet; it reads its source only as it lands.

    ``parts`` are the record's byte ranges in address order: head, pieces of the body, tail.
    """

    def __init__(self, target: Target, origin: memoryview, landing: memoryview, parts: tuple[slice, ...]) -> None:
        self.target = target
        self.parts = parts
        self._origin = origin
        self._landing = landing

    def land(self, part: int) -> None:
        """Land one part unchecked, in whatever order the caller likes: what a torn, unguarded write does."""
        where = self.parts[part]
        self._landing[where] = self._origin[where]


class MemoryTransport:
    """Writes between two buffers of one process, each record accepted or refused as it is copied.

    Holds:
        ``pending``: what was posted and has not been delivered, oldest first.
    """

    fence = Fence.AT_RECEIPT
    lands_in_order = True

    def __init__(
        self, source: bytearray, destination: bytearray, layout: KVLayout, decode: Incarnation, accept: Accept
    ) -> None:
        self.decode = decode
        self.accept = accept
        self.batch_pages_max = Limits().batch_pages_max
        self.pending: deque[PageWrite] = deque()
        self._layout = layout
        self._source = memoryview(source)
        self._destination = memoryview(destination)

    def write(self, batch: PageBatch) -> None:
        """Post the batch and deliver it; see ``Transport.write``.

        Raises:
            TransportError: the receiver refused a page; ``in_flight`` is "no", for each lands in one step or never.
        """
        refused = [write.target.page for write in self.post(batch) if not self.deliver(write)]
        if refused:
            raise TransportError(f"the receiver refused {len(refused)} of {len(batch.source)} pages", "no")

    def post(self, batch: PageBatch, body_parts: int = 1) -> list[PageWrite]:
        """Queue the writes of a batch without landing any byte; ``body_parts`` says how finely they can be torn."""
        sizes = (self._pages(self._source), self._pages(self._destination))
        check_batch(batch, self.decode, sizes, self.batch_pages_max)
        parts = _parts(self._layout, body_parts)
        writes = [
            PageWrite(
                Target(destination, batch.attempt, batch.decode),
                self._record(self._source, source),
                self._record(self._destination, destination),
                parts,
            )
            for source, destination in zip(batch.source, batch.destination, strict=True)
        ]
        self.pending.extend(writes)
        return writes

    def deliver(self, write: PageWrite) -> bool:
        """Ask the receiver and land the whole record, or nothing; say which."""
        self.pending.remove(write)
        if not self.accept(write.target.page, write.target.attempt, write.target.decode):
            return False
        for part in range(len(write.parts)):
            write.land(part)
        return True

    def _pages(self, buffer: memoryview) -> int:
        return len(buffer) // self._layout.record_bytes

    def _record(self, buffer: memoryview, page: int) -> memoryview:
        return buffer[page * self._layout.record_bytes : (page + 1) * self._layout.record_bytes]


def _parts(layout: KVLayout, body_parts: int) -> tuple[slice, ...]:
    body = layout.body
    cuts = [body.start + (body.stop - body.start) * cut // body_parts for cut in range(body_parts + 1)]
    pieces = [slice(start, end) for start, end in pairwise(cuts)]
    return (slice(0, HEAD_BYTES), *pieces, slice(layout.tail_offset, layout.tail_offset + TAIL_BYTES))
