"""The pool, for every course of grants and returns."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.core.ids import Incarnation
from kvfence.protocol.lots import (
    CHUNK_PAGES,
    Lot,
    Pool,
    Quarantined,
    fence_lot,
    free_pages,
    grant_lot,
    new_pool,
    quarantine_lot,
)

WRITER = Incarnation("1" * 32)
COURSES = st.lists(st.tuples(st.integers(1, 700), st.booleans(), st.booleans()), max_size=40)


def pages_of(pool: Pool, held: list[Lot]) -> list[int]:
    """Every page, wherever it is."""
    free = [page for chunk in pool.free for page in chunk]
    quarantined = [page for entry in pool.quarantined.values() for page in entry.lot.pages]
    return sorted([*free, *quarantined, *(page for lot in held for page in lot.pages)])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), COURSES)
def test_no_page_is_lost_or_in_two_places(num_pages: int, course: list[tuple[int, bool, bool]]) -> None:
    """Granted, quarantined and free pages are the pool; serials only grow; chunks stay bounded."""
    pool, held, last = new_pool(num_pages), [], 0
    for wanted, gives_back, quarantines in course:
        if gives_back and held:
            lot = held.pop(0)
            if quarantines:
                pool = quarantine_lot(pool, Quarantined(lot, None, frozenset({WRITER})))
            else:
                pool = free_pages(pool, lot.pages)
        elif wanted <= pool.num_free:
            pool, lot = grant_lot(pool, wanted)
            assert lot.serial > last
            last = lot.serial
            held.append(lot)
        assert pages_of(pool, held) == list(range(num_pages))
        assert pool.num_free == sum(map(len, pool.free))
        assert all(0 < len(chunk) <= CHUNK_PAGES for chunk in pool.free)
    for serial in list(pool.quarantined):
        pool = fence_lot(pool, serial)
    assert pages_of(pool, held) == list(range(num_pages))
