"""The seam between prefill and the pages it writes: what a transport does, and what it can prove.

A transport moves whole page records by one-sided writes: the receiver does nothing and learns nothing. What
makes that safe is not in the write but in two facts that every transport must state of itself, ``fence`` and
``lands_in_order``.

Next: ``shm.py`` (between processes), ``mooncake.py`` (over TCP or RDMA), ``memory.py`` (tests and simulation).
"""

from typing import Protocol

from msgspec import Struct

from kvfence.core.errors import TransportError
from kvfence.core.ids import AttemptId, BatchId, Incarnation, SessionId
from kvfence.core.invariant import require
from kvfence.protocol.transitions import Fence


class PageBatch(Struct, frozen=True):
    """Whole records to write, source page by source page, into the destination pages of one attempt.

    Shapes:
        source, destination: the same length, 1 .. ``Limits.batch_pages_max``.

    ``session``: the receiving engine the destination was granted in; a NEW_SESSION transport writes to no other.
    """

    attempt: AttemptId
    batch: BatchId
    decode: Incarnation
    source: tuple[int, ...]
    destination: tuple[int, ...]
    session: SessionId = SessionId("")


class Transport(Protocol):
    """Writes pages of this process's pool into one peer's.

    ``lands_in_order``: each record's head is visible to the reader before any byte behind it, and its tail after
    all of them. Where this is False the comparison at read is a probe and no guarantee.
    """

    @property
    def fence(self) -> Fence:
        """What ends the quarantine of a destination."""

    @property
    def lands_in_order(self) -> bool:
        """Whether heads land before the bytes they stand for."""

    def write(self, batch: PageBatch) -> None:
        """Write the batch and return when its last byte has landed; blocks, so call it from a writer thread.

        One thread writes at a time. A batch is never written twice within an attempt.

        Owner:
            Source pages are SEALED and held until this returns; after an error, until ``in_flight`` is settled.
        Raises:
            TransportError: the destination is unsafe; ``in_flight`` says whether bytes may still land.
        """


def check_batch(batch: PageBatch, decode: Incarnation, num_pages: tuple[int, int], batch_pages_max: int) -> None:
    """Refuse a batch that names a peer or pages which this transport does not reach.

    Shapes:
        num_pages: of the source and of the destination pool.
    Raises:
        TransportError: nothing was written, so ``in_flight`` is "no".
        InvariantBroken: more pages than a batch may have, or not one destination for each source.
    """
    require(1 <= len(batch.source) <= batch_pages_max, f"a batch has 1 .. {batch_pages_max} pages")
    require(len(batch.source) == len(batch.destination), "one destination for each source page")
    if batch.decode != decode:
        raise TransportError("the batch is for another life of the decode worker than this transport reaches", "no")
    for pages, limit in zip((batch.source, batch.destination), num_pages, strict=True):
        if min(pages) < 0 or max(pages) >= limit:
            raise TransportError(f"the batch names a page outside 0 .. {limit - 1}", "no")
