"""The ledger makes the six moves and no other. Both implementations pass the same tests."""

from collections.abc import Callable

import pytest

from kvfence.core.errors import KvfenceError, LocalProtocolError, OwnershipError, StaleTag
from kvfence.core.pages import PageState
from kvfence.driver.ledger import Ledger, ListLedger
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.protocol.commands import Move
from kvfence.protocol.transitions import PAGE_MOVES, PageMove

Make = Callable[[int, PageState], Ledger]

both = pytest.mark.parametrize("make", [ListLedger, NumpyLedger])

PATHS = {
    PageState.FREE: [],
    PageState.GRANTED: [PageMove.GRANT],
    PageState.SEALED: [PageMove.GRANT, PageMove.SEAL],
    PageState.ADOPTED: [PageMove.GRANT, PageMove.SEAL, PageMove.ADOPT],
    PageState.QUARANTINED: [PageMove.GRANT, PageMove.REVOKE],
}


def ledger_in(make: Make, state: PageState) -> Ledger:
    """Bring pages 1 and 2 of four into a state under serial 7."""
    ledger = make(4, PageState.FREE)
    for move in PATHS[state]:
        ledger.apply(Move(move, 7, (1, 2)))
    return ledger


def snapshot(ledger: Ledger) -> list[tuple[PageState, int]]:
    """Give all that a ledger knows."""
    return [(ledger.state(page), ledger.serial(page)) for page in range(ledger.num_pages)]


@both
@pytest.mark.parametrize("state", list(PageState))
@pytest.mark.parametrize("move", list(PageMove))
def test_a_move_is_made_where_the_table_allows_it_and_nowhere_else(
    make: Make, state: PageState, move: PageMove
) -> None:
    """Every pair of state and move does what the protocol's table says; a refused one changes nothing."""
    ledger = ledger_in(make, state)
    before = snapshot(ledger)
    leaves, becomes = PAGE_MOVES[move]
    command = Move(move, 8 if move is PageMove.GRANT else ledger.serial(1), (1, 2))
    if state in leaves:
        ledger.apply(command)
        assert [ledger.state(page) for page in (1, 2)] == [becomes, becomes]
        assert ledger.count(becomes) == ledger.counts()[becomes] >= 2
    else:
        with pytest.raises(OwnershipError, match=f"page 1.*is {state.value}"):
            ledger.apply(command)
        assert snapshot(ledger) == before


@both
def test_one_illegal_page_refuses_the_whole_move(make: Make) -> None:
    """A move over pages of which the last may not make it moves none."""
    ledger = ledger_in(make, PageState.GRANTED)
    before = snapshot(ledger)
    with pytest.raises(OwnershipError, match="page 3"):
        ledger.apply(Move(PageMove.SEAL, 7, (1, 2, 3)))
    assert snapshot(ledger) == before


@both
def test_a_move_under_an_earlier_serial_is_stale(make: Make) -> None:
    """A page released and granted anew cannot be moved by its former holder."""
    ledger = ledger_in(make, PageState.GRANTED)
    ledger.apply(Move(PageMove.RELEASE, 7, (1, 2)))
    ledger.apply(Move(PageMove.GRANT, 9, (2,)))
    with pytest.raises(StaleTag, match="names serial 7; the page is under 9"):
        ledger.apply(Move(PageMove.RELEASE, 7, (2,)))
    assert ledger.state(2) is PageState.GRANTED


@both
@pytest.mark.parametrize("serial", [6, 7, 0])
def test_serials_only_grow(make: Make, serial: int) -> None:
    """A grant under a serial that was used, or passed over, is refused even for another page."""
    ledger = ledger_in(make, PageState.GRANTED)
    with pytest.raises(LocalProtocolError, match="serials only grow"):
        ledger.apply(Move(PageMove.GRANT, serial, (3,)))


@both
@pytest.mark.parametrize(("pages", "why"), [((), "no page"), ((-1,), "outside"), ((4,), "outside"), ((3, 3), "twice")])
def test_pages_that_cannot_be_named(make: Make, pages: tuple[int, ...], why: str) -> None:
    """No page, a page outside the pool and a page named twice are our own bugs, and change nothing."""
    ledger = ledger_in(make, PageState.FREE)
    with pytest.raises(LocalProtocolError, match=why):
        ledger.apply(Move(PageMove.GRANT, 8, pages))
    assert ledger.counts()[PageState.FREE] == 4


@both
def test_after_a_start_only_a_fence_frees_pages(make: Make) -> None:
    """A pool that starts quarantined grants nothing until its pages are fenced under serial 0."""
    ledger = make(4, PageState.QUARANTINED)
    for move in set(PageMove) - {PageMove.FENCE}:
        with pytest.raises(KvfenceError):
            ledger.apply(Move(move, 1 if move is PageMove.GRANT else 0, (0,)))
    ledger.apply(Move(PageMove.FENCE, 0, (0, 1, 2, 3)))
    ledger.apply(Move(PageMove.GRANT, 1, (0,)))
    assert ledger.counts() == {
        PageState.FREE: 3,
        PageState.GRANTED: 1,
        PageState.SEALED: 0,
        PageState.ADOPTED: 0,
        PageState.QUARANTINED: 0,
    }


@both
def test_lots_that_say_the_same_agree(make: Make) -> None:
    """Pages in no lot are free; lots name state and serial of all others."""
    ledger = ledger_in(make, PageState.SEALED)
    assert ledger.disagreements([(PageState.SEALED, 7, (1, 2))]) == []


@both
@pytest.mark.parametrize(
    ("lots", "wrong"),
    [
        ([], [1, 2]),
        ([(PageState.SEALED, 7, (1,))], [2]),
        ([(PageState.ADOPTED, 7, (1, 2))], [1, 2]),
        ([(PageState.SEALED, 6, (1, 2))], [1, 2]),
        ([(PageState.SEALED, 7, (1, 2)), (PageState.SEALED, 7, (2,))], [2]),
        ([(PageState.SEALED, 7, (1, 2)), (PageState.GRANTED, 8, (3, 9))], [3, 9]),
    ],
)
def test_lots_that_say_otherwise_are_found(
    make: Make, lots: list[tuple[PageState, int, tuple[int, ...]]], wrong: list[int]
) -> None:
    """A missing page, another state, another serial, a page in two lots and a page outside the pool all show."""
    assert ledger_in(make, PageState.SEALED).disagreements(lots) == wrong
