"""The comparison that every pass makes, before and after: do all its pages still show the expected heads?

A head is one cache line at the start of each record, so a batch of n pages costs n scattered reads. All 32
bytes of each head are gathered and compared at once: a line costs the same whether 8 or 32 of its bytes are
used, so nothing is gained by comparing less, and less would not be exact. ``benchmarks/compare.py`` measures it.

Not for: tails and digests, which are compared once, at adoption (``seal.py``).
"""

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from kvfence.core.invariant import require
from kvfence.core.tags import HEAD_BYTES
from kvfence.kv.storage import HEAD_WORDS, Pages, PoolBuffer, Words

Positions = npt.NDArray[np.intp]

_NONE_BAD: Positions = np.empty(0, dtype=np.intp)
_FIRST_CAPACITY = 64


class BatchTable:
    """The page tables of every sequence of a batch, flat: which pages are read or written, and their heads.

    Adding pages costs O(1) a page, amortised; dropping a sequence moves at most as many entries as it had.
    Scratch space is kept, so that a comparison that finds nothing allocates nothing.

    Owner:
        One driver; never shared between threads.
    """

    def __init__(self, pool: PoolBuffer) -> None:
        self.pool = pool
        self._size = 0
        self._owners: dict[Hashable, int] = {}
        self._names: dict[int, Hashable] = {}
        self._next_owner = 0
        self._at: Positions = np.empty(0, dtype=np.intp)
        self._expected: Words = np.empty((0, HEAD_WORDS), dtype="<u8")
        self._owner: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._reserve(_FIRST_CAPACITY)

    def __len__(self) -> int:
        """Give the number of pages in the table."""
        return self._size

    def add(self, sequence: Hashable, pages: Pages, heads: Words) -> None:
        """Add pages to a sequence, with the heads they must show.

        Shapes:
            heads: [len(pages), 4] packed tags; ``seal.pack_heads`` and ``seal.pack_tags`` make them.
        """
        require(heads.shape == (len(pages), HEAD_WORDS), "one head for each page")
        if not len(pages):
            return
        start, end = self._size, self._size + len(pages)
        if end > len(self._at):
            self._reserve(max(end, len(self._at) * 5 // 4))  # not doubled: a comparison reads the capacity
        self._at[start:end] = pages
        require(self._at[start:end].min() >= 0 and self._at[start:end].max() < self.pool.num_pages, "pages of the pool")
        self._at[start:end] *= self.pool.units_per_page
        self._expected[start:end] = heads
        self._owner[start:end] = self._owner_of(sequence)
        self._size = end

    def drop(self, sequence: Hashable) -> None:
        """Forget all pages of a sequence; one that is not there is none."""
        owner = self._owners.pop(sequence, None)
        if owner is None:
            return
        del self._names[owner]
        mine = self._owner[: self._size] == owner
        left = self._size - int(np.count_nonzero(mine))
        holes = np.flatnonzero(mine[:left])
        movers = left + np.flatnonzero(~mine[left:])
        for column in (self._at, self._expected, self._owner):
            column[holes] = column[movers]
        self._expected[left : self._size] = 0
        self._found[left : self._size] = b""
        self._size = left

    def compare(self) -> Positions:
        """Read the head of every page and give the positions of those that are not as expected.

        Shapes:
            result: [number of bad pages]; empty when all is right. ``pages_at`` and ``sequences_at`` name them.
        """
        # "clip" only spares numpy a copy of the result: `add` checked that every index is in range.
        self.pool.units.take(self._at[: self._size], out=self._found[: self._size], mode="clip")
        if self._found_bytes == self._expected:  # one memcmp, capacity included: behind the last entry both are zero
            return _NONE_BAD
        found = self._found.view("<u8").reshape(-1, HEAD_WORDS)
        return np.flatnonzero((found != self._expected).any(axis=1))

    def pages_at(self, positions: Positions) -> list[int]:
        """Name the pages at these positions."""
        pages: list[int] = (self._at[positions] // self.pool.units_per_page).tolist()
        return pages

    def sequences_at(self, positions: Positions) -> set[Hashable]:
        """Name the sequences that hold these positions."""
        return {self._names[owner] for owner in self._owner[positions].tolist()}

    def _owner_of(self, sequence: Hashable) -> int:
        owner = self._owners.get(sequence)
        if owner is None:
            owner = self._owners[sequence] = self._next_owner
            self._names[owner] = sequence
            self._next_owner += 1
        return owner

    def _reserve(self, capacity: int) -> None:
        more = capacity - len(self._at)
        self._at = np.concatenate((self._at, np.zeros(more, dtype=np.intp)))
        self._expected = np.concatenate((self._expected, np.zeros((more, HEAD_WORDS), dtype="<u8")))
        self._owner = np.concatenate((self._owner, np.zeros(more, dtype=np.int64)))
        self._found_bytes = bytearray(capacity * HEAD_BYTES)
        self._found = np.frombuffer(self._found_bytes, dtype=f"V{HEAD_BYTES}")
