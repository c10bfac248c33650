"""Pages as bytes: the real records, heads, seals, digests and comparisons of ``kvfence.kv`` under the same simulation.

Each symbol of ``memory.py`` is 16 bytes that stand in a record's segments; what is read back is told from the bytes
alone, so that the oracle judges bytes. Bytes that are nobody's are ``CORRUPT``. Needs numpy and xxhash.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from kvfence.core.errors import StampMismatch
from kvfence.core.layout import KVLayout, Segment
from kvfence.core.manifest import Manifest
from kvfence.core.tags import HEAD_BYTES, PageStamp, PageTag, unpack_stamp, unpack_tag
from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import handoff_digest, pack_tags, page_digest, seal_page, verify_pages, write_head
from kvfence.kv.storage import Bytes, PoolBuffer, pool_bytes
from kvfence.sim.memory import CORRUPT, HALVES, PARTS, Cell, Memory, Verdict, Written

SYMBOL_BYTES = 16
_ZERO = bytes(SYMBOL_BYTES)

Names = dict[bytes, Written]
"""Who is meant by the bytes of a symbol."""


def record_layout(page_size: int) -> KVLayout:
    """Give a record of two segments, one for each half of a body, with one symbol a token."""
    return KVLayout(page_size, tuple(Segment(f"half {n}", n, (SYMBOL_BYTES,), "uint8") for n in range(HALVES)))


class Halves(list[Written | None]):
    """A body as it is read from the bytes; what is put into it is written there."""

    def __init__(self, cell: "RecordCell") -> None:
        self._cell = cell
        super().__init__(cell.symbol_at(half, 0) for half in range(HALVES))

    def __setitem__(self, index: Any, written: Any) -> None:
        """Write one half."""
        super().__setitem__(index, written)
        self._cell.write_half(range(HALVES)[index], written)


class RecordCell(Cell):
    """One record of a pool. The first slot of a segment names whose it is, the last one what lies behind the prompt."""

    def __init__(self, pool: PoolBuffer, page: int, names: Names) -> None:
        self._pool, self._page, self._names = pool, page, names
        self._slots = [
            pool.records[page, offset : offset + SYMBOL_BYTES * pool.layout.page_size].reshape(-1, SYMBOL_BYTES)
            for offset in pool.layout.offsets
        ]

    def symbol_at(self, half: int, slot: int) -> Written | None:
        """Tell whose bytes stand in a slot."""
        held = self._slots[half][slot].tobytes()
        return None if held == _ZERO else self._names.get(held, CORRUPT)

    def write_half(self, half: int, written: Written | None) -> None:
        """Write a segment's slots, but the last, where what was there before may stay."""
        self._slots[half][:-1] = self._bytes_of(written)

    def _bytes_of(self, written: Written | None) -> Bytes:
        name = _ZERO if written is None else blake2b(repr(written).encode(), digest_size=SYMBOL_BYTES).digest()
        if written is not None:
            self._names[name] = written
        return np.frombuffer(name, np.uint8)

    # ---- as a symbolic page is read and written

    @property
    def head(self) -> PageTag | None:
        """The tag in the record's head."""
        head = self._pool.heads[self._page].tobytes()
        return unpack_tag(head) if any(head) else None

    @head.setter
    def head(self, tag: PageTag | None) -> None:
        """Write the head, or zeros."""
        if tag is None:
            self._pool.heads[self._page] = 0
        else:
            write_head(self._pool, [self._page], [tag])

    @property
    def tail(self) -> PageStamp | None:
        """The stamp in the record's tail."""
        tail = self._pool.tails[self._page].tobytes()
        return unpack_stamp(tail) if any(tail) else None

    @tail.setter
    def tail(self, stamp: PageStamp | None) -> None:
        """Write the tail, or zeros."""
        packed = stamp.pack() if stamp is not None else bytes(self._pool.tails.dtype.itemsize)
        self._pool.tails[self._page] = np.frombuffer(packed, dtype=self._pool.tails.dtype)[0]

    @property
    def body(self) -> list[Written | None]:
        """The halves, told from the bytes."""
        return Halves(self)

    @body.setter
    def body(self, halves: Iterable[Written | None]) -> None:
        """Write both halves."""
        for half, written in enumerate(halves):
            self.write_half(half, written)

    @property
    def slack(self) -> Written | None:
        """What lies in the last slot."""
        return self.symbol_at(0, -1)

    @slack.setter
    def slack(self, written: Written | None) -> None:
        """Write the last slot of both segments."""
        for half in range(HALVES):
            self._slots[half][-1] = self._bytes_of(written)

    # ---- bytes as they are

    def digest(self) -> bytes:
        """Digest the record's body."""
        return page_digest(self._pool, self._page)

    def seal(self, tag: PageTag, num_tokens: int, *, zero: bool) -> bool:
        """Seal the record; one that shows another head is stamped as it is, which its own pass reports."""
        try:
            seal_page(self._pool, tag, num_tokens, zero_tail=zero)
        except StampMismatch:
            self.tail = PageStamp(tag, num_tokens, self.digest())
        return self.slack is None or num_tokens == self._pool.layout.page_size

    def land(self, part: int, source: Cell, *, corrupt: bool) -> None:
        """Copy one part's bytes from the record it is read from now; a corrupt one has other bits."""
        if not isinstance(source, RecordCell):
            super().land(part, source, corrupt=corrupt)
            return
        start, end = self._range(part)
        self._pool.records[self._page, start:end] = source._pool.records[source._page, start:end]
        if corrupt and 0 < part < PARTS - 1:
            self._pool.records[self._page, start : start + SYMBOL_BYTES] ^= 0xFF

    def _range(self, part: int) -> tuple[int, int]:
        layout = self._pool.layout
        starts = [0, *layout.offsets, layout.tail_offset, layout.record_bytes]
        return (0, HEAD_BYTES) if part == 0 else (starts[part], starts[part + 1])

    def frozen(self) -> Cell:
        """Give a copy of the record as it is now."""
        copy = RecordMemory(1, self._pool.layout.page_size, self._names)
        copy.pool.records[0] = self._pool.records[self._page]
        return copy[0]


class RecordMemory(Memory):
    """The records of one pool. Never cleared."""

    def __init__(self, num_pages: int, page_size: int, names: Names) -> None:
        layout = record_layout(page_size)
        self.pool = PoolBuffer(bytearray(pool_bytes(layout, num_pages)), layout, num_pages)
        self.cells = [RecordCell(self.pool, page, names) for page in range(num_pages)]

    def mismatches(self, expected: Sequence[tuple[int, PageTag | None]]) -> set[int]:
        """Compare heads as every pass does."""
        known = [(page, tag) for page, tag in expected if tag is not None]
        table = BatchTable(self.pool)
        table.add("sequence", [page for page, _ in known], pack_tags([tag for _, tag in known]))
        return {page for page, tag in expected if tag is None}.union(table.pages_at(table.compare()))

    def verify(self, pages: Sequence[int], manifest: Manifest, num_tokens: int) -> Verdict:
        """Verify landed pages as decode does."""
        origins = [manifest.origin_tag(index) for index in range(len(pages))]
        report = verify_pages(self.pool, pages, origins, num_tokens)
        bad = {*report.bad_head, *report.bad_tail}
        sound = not (report.bad_digest or report.bad_count or report.stale_slots) and report.digest == manifest.digest
        return Verdict(tuple(page for page in pages if page in bad), sound)

    def digest_of(self, stamps: Sequence[PageStamp]) -> str:
        """Give what a manifest promises of these stamps."""
        return handoff_digest(stamps)
