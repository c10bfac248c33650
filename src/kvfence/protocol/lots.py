"""Pages granted together, who holds them, and the pool they come from.

A lot's serial, pool-wide and only growing, is the generation of the tags of all its pages. Nodes hold lots, so
their state is O(live attempts); the per-page table is the driver's ledger.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.invariant import require

CHUNK_PAGES = 512
"""Free pages lie in chunks of at most this many, any two neighbours holding more than this together: a move copies
two chunks and one reference for each of num_pages / 256 chunks, whatever the size of the pool."""


class Lot(Struct, frozen=True):
    """Pages granted together under one serial."""

    serial: int
    pages: tuple[int, ...]


class HeldLot(Struct, frozen=True):
    """A lot of prefill's pool with the set of those that read it; each holds its first pages, its writer all.

    ``salt``: whose it is; empty: never shared. ``verified``: the hand-off that wrote it was committed, so that its
    pages may be shared, and stay when the last holder leaves. ``bad``: a page showed another head than its own.
    ``quiet``: no failed write may still read it.
    """

    lot: Lot
    salt: str
    holders: dict[AttemptId, int]
    verified: bool = False
    bad: bool = False
    quiet: bool = True

    @property
    def num_held(self) -> int:
        """Pages that some attempt holds; they come first."""
        return max(self.holders.values(), default=0)

    @property
    def is_idle(self) -> bool:
        """Does nobody hold it?"""
        return not self.holders

    @property
    def num_cached(self) -> int:
        """Pages that nobody holds and that make room when others need it."""
        return len(self.lot.pages) - self.num_held if self.quiet and not self.bad else 0


class Quarantined(Struct, frozen=True):
    """A lot nobody may touch.

    ``attempt``: who held it; None for a former life. ``writers``: the lives that may still write; when all are
    fenced, it ends. ``drains``: the attempt's *drained* ends it, too; not after a mismatch, which proves that some
    writer is active, but not which.
    """

    lot: Lot
    attempt: AttemptId | None
    writers: frozenset[Incarnation]
    drains: bool = True


class Pool(Struct, frozen=True):
    """The pages of one node, but for those in decode's hand-offs.

    ``free``: chunks of free pages, taken from the end. ``quarantined``: by serial.
    ``held``: prefill's lots with their holders, by serial, the least recently used first; ``num_cached`` of their
    pages and ``num_idle`` of the lots are held by nobody (``sharing.py``).
    """

    num_pages: int
    free: tuple[tuple[int, ...], ...]
    num_free: int
    next_serial: int = 1
    quarantined: dict[int, Quarantined] = {}
    held: dict[int, HeldLot] = {}
    num_cached: int = 0
    num_idle: int = 0

    @property
    def num_quarantined(self) -> int:
        """Pages in quarantine."""
        return sum(len(entry.lot.pages) for entry in self.quarantined.values())


def new_pool(num_pages: int) -> Pool:
    """A pool whose pages are all free."""
    return Pool(num_pages, tuple(_chunks(range(num_pages - 1, -1, -1))), num_pages)


def former_life_pool(num_pages: int, former: Incarnation) -> Pool:
    """A pool whose pages may all still be written by a former life."""
    lot = Lot(0, tuple(range(num_pages)))
    return Pool(num_pages, (), 0, quarantined={0: Quarantined(lot, None, frozenset({former}), drains=False)})


def grant_lot(pool: Pool, num_pages: int) -> tuple[Pool, Lot]:
    """Take free pages under a new serial; the caller has checked that there are enough."""
    require(0 < num_pages <= pool.num_free, "a grant takes free pages only")
    pages: list[int] = []
    chunks = list(pool.free)
    while len(pages) < num_pages:
        chunk = chunks.pop()
        wanted = num_pages - len(pages)
        if len(chunk) > wanted:
            chunks.append(chunk[:-wanted])
            chunk = chunk[-wanted:]
        pages += reversed(chunk)
    lot = Lot(pool.next_serial, tuple(pages))
    freed = replace(pool, free=tuple(chunks), num_free=pool.num_free - num_pages, next_serial=pool.next_serial + 1)
    return freed, lot


def free_pages(pool: Pool, pages: tuple[int, ...]) -> Pool:
    """Put pages back."""
    chunks = list(pool.free)
    for chunk in _chunks(pages[::-1]):
        if chunks and len(chunks[-1]) + len(chunk) <= CHUNK_PAGES:
            chunk = chunks.pop() + chunk
        chunks.append(chunk)
    return replace(pool, free=tuple(chunks), num_free=pool.num_free + len(pages))


def _chunks(pages: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(pages), CHUNK_PAGES):
        yield tuple(pages[start : start + CHUNK_PAGES])


def put_held(pool: Pool, *entries: HeldLot, used: bool = True) -> Pool:
    """Store lots with their holders, the last named as the most recently used; forget those without pages.

    ``used``: False leaves each where it stands in that order.
    """
    held, num_cached, num_idle = pool.held.copy(), pool.num_cached, pool.num_idle
    for entry in entries:
        before = held.get(entry.lot.serial)
        if before is not None:
            num_cached -= before.num_cached
            num_idle -= before.is_idle
            if used or not entry.lot.pages:
                del held[entry.lot.serial]
        if entry.lot.pages:
            num_cached += entry.num_cached
            num_idle += entry.is_idle
            held[entry.lot.serial] = entry
    return replace(pool, held=held, num_cached=num_cached, num_idle=num_idle)


def quarantine_lot(pool: Pool, entry: Quarantined) -> Pool:
    """Put a lot aside."""
    return replace(pool, quarantined={**pool.quarantined, entry.lot.serial: entry})


def fence_lot(pool: Pool, serial: int) -> Pool:
    """Free a quarantined lot."""
    rest = dict(pool.quarantined)
    lot = rest.pop(serial).lot
    return free_pages(replace(pool, quarantined=rest), lot.pages)
