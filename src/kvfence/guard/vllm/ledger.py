"""A serial for each use of each block, and whether every scheduled table still names the uses it was built from.

Serials come from vLLM's own block pool, whose grants are counted as they happen. What a step could change is looked at
in that step; beside that a bounded sweep compares some of all tables with vLLM's. Not for: what follows (the caller).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from msgspec import Struct

SWEEP_BLOCKS = 256
"""Blocks compared a step beyond those that changed: a whole table of 8,192 tokens at 32 a block."""

Tables = Callable[[str], tuple[list[int], ...] | None]
"""vLLM's table of a request that is scheduled; None for another."""


class Broken(Struct, frozen=True):
    """A table that names a block of another use. ``serial``: as it is now; ``expected``: as it was built."""

    request: str
    block: int
    expected: int
    serial: int


class Ledger:
    """The serials of one pool, and the tables of the requests that run on it.

    ``granted``: blocks granted since the last step; ``checked``: comparisons so far.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._serials = [0] * len(pool.blocks)
        self._serial = 0
        self.granted: set[int] = set()
        self._tables: dict[str, dict[int, int]] = {}
        self._holders: dict[int, set[str]] = {}
        self._sweeping: deque[str] = deque()
        self._swept: dict[str, int] = {}
        """By request, how much of its table the sweep has seen, where that is not all."""
        self.checked = 0
        self._get = pool.get_new_blocks
        pool.get_new_blocks = self._grant

    def _grant(self, *given: Any, **named: Any) -> Any:
        blocks = self._get(*given, **named)
        self._serial += 1
        for block in blocks:
            self._serials[block.block_id] = self._serial
            self.granted.add(block.block_id)
        return blocks

    def serials(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Give the serials of blocks as they are now."""
        return tuple(self._serials[block] for block in blocks)

    def is_null(self, block: int) -> bool:
        """Is this the pool's placeholder, which is nobody's?"""
        return bool(self._pool.blocks[block].is_null)

    def hold(self, blocks: Iterable[int]) -> None:
        """Keep blocks out of the pool, whoever frees them: one more reference, which nobody gives back."""
        self._pool.touch([self._pool.blocks[block] for block in blocks])

    # ---- tables ----

    def forget(self, request: str) -> None:
        """A request has ended, or will come again with another table."""
        self._swept.pop(request, None)
        for block in self._tables.pop(request, ()):
            holders = self._holders.get(block)
            if holders is not None:
                holders.discard(request)
                if not holders:
                    del self._holders[block]

    def followed(self, request: str) -> tuple[list[int], ...]:
        """Give a request's table as it was followed, for releases that do not show it; of one KV cache group."""
        return (list(self._tables.get(request, ())),)

    def extend(self, request: str, blocks: Iterable[int]) -> list[Broken]:
        """Add what a step adds to a request's table, or to what it reads; give what nobody has been granted.

        A block that a window left behind can come back to the same request: it counts as its newest use.
        """
        table = self._tables.setdefault(request, {})
        broken = []
        for block in blocks:
            serial = self._serials[block]
            if self._pool.blocks[block].is_null or table.get(block) == serial:
                continue
            table[block] = serial
            self._holders.setdefault(block, set()).add(request)
            self.checked += 1
            if self._pool.blocks[block].ref_cnt < 1:
                broken.append(Broken(request, block, serial, serial))
        return broken

    def begin(self, request: str, blocks: Sequence[int]) -> list[Broken]:
        """A request has its first pass: follow its whole table; give what became another's since it was read into."""
        noted = self._tables.get(request, {})
        lost = [
            Broken(request, block, expected, self._serials[block])
            for block in blocks
            if (expected := noted.get(block, self._serials[block])) != self._serials[block]
        ]
        self.forget(request)
        return lost + self.extend(request, blocks)

    def holders(self, block: int) -> tuple[str, ...]:
        """Give the requests whose tables name a block."""
        return tuple(self._holders.get(block, ()))

    def step(self, scheduled: Iterable[str], tables: Tables) -> list[Broken]:
        """Give every block of a scheduled table that is of another use by now; what a step changed, and some more."""
        suspects = [
            (request, block)
            for block in self.granted
            for request in tuple(self._holders.get(block, ()))
            if self._tables[request][block] != self._serials[block]
        ]
        self.granted.clear()
        broken = [one for request, block in suspects if (one := self._look(request, block, tables)) is not None]
        return broken + self._sweep(scheduled, tables)

    def _look(self, request: str, block: int, tables: Tables) -> Broken | None:
        """A block was granted anew: does the table that had it still name it? A window that moved on does not."""
        self.checked += 1
        expected, serial = self._tables[request][block], self._serials[block]
        table = tables(request)
        if table is not None and not any(block in group for group in table):
            del self._tables[request][block]
            self._holders[block].discard(request)
            return None
        return Broken(request, block, expected, serial) if table is not None else None

    def _sweep(self, scheduled: Iterable[str], tables: Tables) -> list[Broken]:
        """Compare tables with vLLM's, in turn, until the step's share is used; the next step goes on from there."""
        if not self._sweeping:
            self._sweeping.extend(scheduled)
        broken: list[Broken] = []
        left = SWEEP_BLOCKS
        while self._sweeping and left > 0:
            request = self._sweeping.popleft()
            table = tables(request)
            if table is None or request not in self._tables:
                continue  # not in this step: where it was left, the next round goes on
            begin = self._swept.pop(request, 0)
            part = list(islice(chain.from_iterable(table), begin, begin + left))
            broken += self._compare(request, part)
            left -= len(part)
            if begin + len(part) < sum(map(len, table)):
                self._swept[request] = begin + len(part)
                self._sweeping.appendleft(request)
        return broken

    def _compare(self, request: str, blocks: Iterable[int]) -> list[Broken]:
        """Compare some of a table's blocks with what was noted of them."""
        broken, noted = [], self._tables[request]
        for block in blocks:
            found = self._pool.blocks[block]
            if found.is_null:
                continue
            self.checked += 1
            serial, expected = self._serials[block], noted.get(block)
            if expected != serial or found.ref_cnt < 1:
                broken.append(Broken(request, block, -1 if expected is None else expected, serial))
        return broken
