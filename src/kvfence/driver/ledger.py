"""The per-page table of a pool, the state and serial of every page, changed only by ``Move`` commands.

Nodes hold lots, which are O(live attempts); the ledger holds pages, which are many. That both say the same is
the property ``ledger-agrees``. Two implementations behind one interface: ``ListLedger`` needs only the standard
library, ``NumpyLedger`` (``numpy_ledger.py``) is for pools of many pages.

Not for: deciding (``protocol/``) or bytes (``kv/``).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from kvfence.core.errors import LocalProtocolError, OwnershipError, StaleTag
from kvfence.core.pages import PageState
from kvfence.protocol.commands import Move
from kvfence.protocol.transitions import PAGE_MOVES, PageMove

Lot = tuple[PageState, int, Sequence[int]]
"""What a node says of one lot: the state, serial and pages. Lots that are free need not be named."""


class Ledger(Protocol):
    """The per-page table. A refused move changes nothing."""

    num_pages: int

    def apply(self, move: Move) -> None:
        """Move all the pages, or none.

        Raises:
            LocalProtocolError: no such page, a page named twice, no page, or a serial that was granted before.
            StaleTag: a page is under another serial than the move names.
            OwnershipError: a page is in a state that this move does not leave.
        """

    def state(self, page: int) -> PageState:
        """Give the state of a page."""

    def serial(self, page: int) -> int:
        """Give the serial a page was last granted under; 0 before the first grant."""

    def count(self, state: PageState) -> int:
        """Count the pages in a state."""

    def counts(self) -> dict[PageState, int]:
        """Count the pages in every state."""

    def disagreements(self, lots: Iterable[Lot]) -> list[int]:
        """Give the pages of which these lots say otherwise; pages in no lot should be free."""


class ListLedger:
    """The per-page table in plain lists."""

    def __init__(self, num_pages: int, start: PageState) -> None:
        self.num_pages = num_pages
        self._states = [start] * num_pages
        self._serials = [0] * num_pages
        self._counts = dict.fromkeys(PageState, 0)
        self._counts[start] = num_pages
        self._last_serial = 0

    @staticmethod
    def showing(num_pages: int, lots: Iterable[Lot], last_serial: int) -> "ListLedger":
        """Give the table that agrees with these lots; pages in no lot are free."""
        ledger = ListLedger(num_pages, PageState.FREE)
        ledger._last_serial = last_serial
        for state, serial, pages in lots:
            for page in pages:
                ledger._states[page], ledger._serials[page] = state, serial
            ledger._counts[PageState.FREE] -= len(pages)
            ledger._counts[state] += len(pages)
        return ledger

    def apply(self, move: Move) -> None:
        """Move all the pages, or none; see ``Ledger.apply``."""
        leaves, becomes = PAGE_MOVES[move.move]
        check_pages(move, self.num_pages, self._last_serial)
        granted = move.move is PageMove.GRANT
        states, serials, counts, serial = self._states, self._serials, self._counts, move.serial
        for page in move.pages:
            if states[page] not in leaves:
                raise illegal_state(move, page, states[page])
            if not granted and serials[page] != serial:
                raise stale_serial(move, page, serials[page])
        for page in move.pages:
            counts[states[page]] -= 1
            states[page], serials[page] = becomes, serial
        self._counts[becomes] += len(move.pages)
        if granted:
            self._last_serial = move.serial

    def state(self, page: int) -> PageState:
        """Give the state of a page."""
        return self._states[page]

    def serial(self, page: int) -> int:
        """Give the serial a page was last granted under; 0 before the first grant."""
        return self._serials[page]

    def count(self, state: PageState) -> int:
        """Count the pages in a state."""
        return self._counts[state]

    def counts(self) -> dict[PageState, int]:
        """Count the pages in every state."""
        return dict(self._counts)

    def disagreements(self, lots: Iterable[Lot]) -> list[int]:
        """Give the pages of which these lots say otherwise; pages in no lot should be free."""
        said = dict.fromkeys(range(self.num_pages), (PageState.FREE, -1))
        wrong = set()
        for state, serial, pages in lots:
            for page in pages:
                if said.get(page, (state, 0)) != (PageState.FREE, -1):
                    wrong.add(page)  # no such page, or in two lots
                else:
                    said[page] = (state, serial)
        for page, (state, serial) in said.items():
            if self._states[page] is not state or serial not in (-1, self._serials[page]):
                wrong.add(page)
        return sorted(wrong)


def check_pages(move: Move, num_pages: int, last_serial: int) -> None:
    """Refuse a move that names no page, a page twice, a page outside the pool or an old serial to grant.

    Raises:
        LocalProtocolError: with the move and the page.
    """
    name = move.move.value
    if not move.pages:
        raise LocalProtocolError(f"{name} of serial {move.serial} names no page")
    if min(move.pages) < 0 or max(move.pages) >= num_pages:
        raise LocalProtocolError(f"{name} of serial {move.serial} names a page outside 0 .. {num_pages - 1}")
    if len(set(move.pages)) != len(move.pages):
        raise LocalProtocolError(f"{name} of serial {move.serial} names a page twice")
    if move.move is PageMove.GRANT and move.serial <= last_serial:
        raise LocalProtocolError(f"grant of serial {move.serial} does not exceed {last_serial}: serials only grow")


def illegal_state(move: Move, page: int, state: PageState) -> OwnershipError:
    """Make the error for a page that this move does not leave."""
    return OwnershipError(f"{move.move.value} of page {page}, serial {move.serial}: the page is {state.value}")


def stale_serial(move: Move, page: int, serial: int) -> StaleTag:
    """Make the error for a page that is under another serial."""
    return StaleTag(f"{move.move.value} of page {page} names serial {move.serial}; the page is under {serial}")
