"""The per-page table of a pool in numpy arrays: the same moves and refusals as ``ListLedger``."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from kvfence.core.pages import PageState
from kvfence.driver.ledger import Lot, check_pages, illegal_state, stale_serial
from kvfence.protocol.commands import Move
from kvfence.protocol.transitions import PAGE_MOVES, PageMove

_STATES = tuple(PageState)
_CODES = {state: code for code, state in enumerate(_STATES)}
_ALLOWED = {
    move: np.array([state in leaves for state in _STATES], dtype=np.bool_) for move, (leaves, _) in PAGE_MOVES.items()
}


class NumpyLedger:
    """The per-page table in two arrays. Units: a move of n pages costs a few gathers of n elements."""

    def __init__(self, num_pages: int, start: PageState) -> None:
        self.num_pages = num_pages
        self._states: npt.NDArray[np.uint8] = np.full(num_pages, _CODES[start], dtype=np.uint8)
        self._serials: npt.NDArray[np.int64] = np.zeros(num_pages, dtype=np.int64)
        self._place: npt.NDArray[np.intp] = np.zeros(num_pages, dtype=np.intp)  # scratch: where a move named a page
        self._last_serial = 0

    def apply(self, move: Move) -> None:
        """Move all the pages, or none; see ``Ledger.apply``."""
        pages = np.array(move.pages, dtype=np.intp)
        grows = move.move is not PageMove.GRANT or move.serial > self._last_serial
        if not grows or not self._can_be_named(pages):
            check_pages(move, self.num_pages, self._last_serial)  # raises, in the words of every ledger
        self._require_legal(move, pages)
        self._states[pages] = _CODES[PAGE_MOVES[move.move][1]]
        self._serials[pages] = move.serial
        if move.move is PageMove.GRANT:
            self._last_serial = move.serial

    def state(self, page: int) -> PageState:
        """Give the state of a page."""
        return _STATES[int(self._states[page])]

    def serial(self, page: int) -> int:
        """Give the serial a page was last granted under; 0 before the first grant."""
        return int(self._serials[page])

    def count(self, state: PageState) -> int:
        """Count the pages in a state."""
        return int(np.count_nonzero(self._states == _CODES[state]))

    def counts(self) -> dict[PageState, int]:
        """Count the pages in every state."""
        found = np.bincount(self._states, minlength=len(_STATES)).tolist()
        return dict(zip(_STATES, found, strict=True))

    def table(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Give every page's state, as its index in ``PageState``, and serial; to read, and only until the next move."""
        return self._states, self._serials

    def disagreements(self, lots: Iterable[Lot]) -> list[int]:
        """Give the pages of which these lots say otherwise; pages in no lot should be free."""
        states = np.full(self.num_pages, _CODES[PageState.FREE], dtype=np.uint8)
        serials = self._serials.copy()
        times = np.zeros(self.num_pages, dtype=np.intp)
        outside: set[int] = set()
        for state, serial, named in lots:
            outside.update(page for page in named if not 0 <= page < self.num_pages)
            pages = np.array([page for page in named if 0 <= page < self.num_pages], dtype=np.intp)
            states[pages], serials[pages] = _CODES[state], serial
            np.add.at(times, pages, 1)
        wrong = (states != self._states) | (serials != self._serials) | (times > 1)
        return sorted(outside | set(np.flatnonzero(wrong).tolist()))

    def _can_be_named(self, pages: npt.NDArray[np.intp]) -> bool:
        """Whether there are pages, all of this pool, and none twice: of a page named twice the last place stays."""
        if not pages.size or pages.min() < 0 or pages.max() >= self.num_pages:
            return False
        places = np.arange(pages.size)
        self._place[pages] = places
        return bool((self._place[pages] == places).all())

    def _require_legal(self, move: Move, pages: npt.NDArray[np.intp]) -> None:
        """Raise for the first page, in the move's order, that may not make it."""
        illegal = ~_ALLOWED[move.move][self._states[pages]]
        stale = np.zeros(len(pages), dtype=np.bool_)
        if move.move is not PageMove.GRANT:
            stale = self._serials[pages] != move.serial
        if not (wrong := np.flatnonzero(illegal | stale)).size:
            return
        page = int(pages[wrong[0]])
        if illegal[wrong[0]]:
            raise illegal_state(move, page, self.state(page))
        raise stale_serial(move, page, self.serial(page))
