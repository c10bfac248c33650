import msgspec
import numpy as np
import pytest

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.pages import PageState
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Move
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.lots import Lot, Quarantined, new_pool, quarantine_lot
from kvfence.protocol.node import Lives
from kvfence.protocol.transitions import DecodePhase, Fence, PageMove
from kvfence.runtime.drawing import CELLS_MAX, RUNS_MAX, STATES, draw_pool
from kvfence.runtime.page_map import NOBODY, UNNAMED, PageMap

GATEWAY = Incarnation("a" * 32)
BYTES_MAX = 21 << 10


class Drawn:
    """A decode node and its ledger, pages granted to attempts by hand."""

    def __init__(self, num_pages: int) -> None:
        self.ledger = NumpyLedger(num_pages, PageState.FREE)
        capacity = Capacity(16, 64, num_pages, num_pages)
        self.node = DecodeNode(Lives(GATEWAY), capacity, "layout", Fence.PEER_EXIT, new_pool(num_pages))
        self.serial = 0

    def grant(self, counter: int, *pages: int) -> Lot:
        """Grant pages to an attempt."""
        self.serial += 1
        lot = Lot(self.serial, pages)
        self.ledger.apply(Move(PageMove.GRANT, lot.serial, pages))
        attempt = AttemptId(GATEWAY, counter)
        handoffs = {**self.node.handoffs, attempt: DecodeHandoff(attempt, GATEWAY, 1, 1, DecodePhase.GRANTED, lot)}
        self.node = msgspec.structs.replace(self.node, handoffs=handoffs)
        return lot

    def draw(self) -> PageMap:
        """Draw it, through the wire's encoding."""
        encoded = msgspec.msgpack.encode(draw_pool(self.ledger, self.node))
        assert len(encoded) < BYTES_MAX
        return msgspec.msgpack.decode(encoded, type=PageMap)


def cells(drawn: PageMap) -> list[tuple[str, int | None]]:
    """Give the state and the holder's counter of every cell."""
    counters = [attempt.counter for attempt in drawn.attempts()]
    return [
        (STATES[run.state].value, counters[run.holder] if run.holder >= 0 else None)
        for run in drawn.runs
        for _ in range(run.num_cells)
    ]


def test_an_idle_pool_is_one_run() -> None:
    """Whatever its size."""
    drawn = Drawn(100_000).draw()
    assert (len(drawn.runs), drawn.runs[0].num_cells, drawn.pages_per_cell, drawn.holders) == (1, 100_000, 1, ())


def test_each_page_has_its_state_and_its_attempt() -> None:
    """Granted, sealed, released: as the ledger says; the holder by the serial the page is under."""
    pool = Drawn(6)
    first = pool.grant(7, 0, 1)
    pool.grant(8, 4)
    pool.ledger.apply(Move(PageMove.SEAL, first.serial, (1,)))
    assert cells(pool.draw()) == [
        ("granted", 7),
        ("sealed", 7),
        ("free", None),
        ("free", None),
        ("granted", 8),
        ("free", None),
    ]
    assert dict(pool.draw().phases) == {0: "granted", 1: "granted"}


def test_a_free_page_has_no_holder_although_it_is_still_under_a_serial() -> None:
    """Released pages keep the serial of their last grant; nobody is shown for them."""
    pool = Drawn(2)
    lot = pool.grant(1, 0)
    pool.ledger.apply(Move(PageMove.RELEASE, lot.serial, (0,)))
    assert cells(pool.draw()) == [("free", None), ("free", None)]


def test_a_quarantined_page_shows_whose_it_was() -> None:
    """Its hand-off is gone; the quarantine remembers the attempt."""
    pool = Drawn(3)
    lot = pool.grant(5, 1)
    pool.ledger.apply(Move(PageMove.REVOKE, lot.serial, (1,)))
    entry = Quarantined(lot, AttemptId(GATEWAY, 5), frozenset({GATEWAY}))
    node = msgspec.structs.replace(pool.node, pool=quarantine_lot(pool.node.pool, entry), handoffs={})
    pool.node = node
    assert cells(pool.draw())[1] == ("quarantined", 5)


@pytest.mark.parametrize("num_pages", [2 * RUNS_MAX + 1, 50_000])
def test_a_ragged_pool_is_drawn_in_cells_and_hides_no_quarantine(num_pages: int) -> None:
    """Every other page granted: cells of several pages, few of them; the one quarantined page is still there."""
    pool = Drawn(num_pages)
    pool.grant(1, *range(0, num_pages, 2))
    bad = pool.grant(2, num_pages - 2 if num_pages % 2 else num_pages - 1)
    pool.ledger.apply(Move(PageMove.REVOKE, bad.serial, bad.pages))
    drawn = pool.draw()
    shown = cells(drawn)
    assert drawn.pages_per_cell == -(-num_pages // CELLS_MAX)
    assert len(shown) == -(-num_pages // drawn.pages_per_cell) <= CELLS_MAX
    assert ("quarantined", 2) in shown
    assert len(drawn.runs) <= RUNS_MAX


def test_more_holders_than_can_be_named_are_drawn_without_a_name() -> None:
    """The map stays within its bound with a thousand attempts of one page each."""
    pool = Drawn(1000)
    for page in range(1000):
        pool.grant(page, page)
    drawn = pool.draw()
    assert {run.holder for run in drawn.runs} >= {0, UNNAMED}
    assert NOBODY not in {run.holder for run in drawn.runs}


def test_the_table_is_the_ledgers_own() -> None:
    """Nothing is copied at a heartbeat."""
    ledger = NumpyLedger(3, PageState.FREE)
    states, serials = ledger.table()
    assert np.shares_memory(states, ledger._states)
    assert np.shares_memory(serials, ledger._serials)
