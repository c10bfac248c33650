"""Which grant each page of a pool belongs to, from the engine's own allocator: a serial a page.

Not for: which pages a request's table names (``tables.py``).
"""

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int64]

SERIAL_MAX = 2**31 - 1
"""Then serials begin anew: four bytes a page keep a large pool's in a core's cache, and no table stands that long."""

SEVERAL = -1

BANNED = 0
"""The serial of a page that was given to two: it is nobody's, and never is again."""


class Serials:
    """One pool's pages.

    Shapes:
        serial: [pages]; above 0 while granted, below while free, and what it was when it was granted last.
        listed: [pages]; in how many requests' tables a page stands, as far as these were looked at.
        row: [pages]; whose table that is, where it is one; ``SEVERAL`` where it was more than one since.
        stale: [rows]; a page that stands in this table has been granted or given back: it is to be looked at whole.
    ``alarms`` grows where nobody knows whose table that is: then all are to be looked at whole.
    """

    def __init__(self, num_pages: int) -> None:
        self.serial = np.full(num_pages, -1, dtype=np.int32)
        self.listed = np.zeros(num_pages, dtype=np.int32)
        self.row = np.full(num_pages, SEVERAL, dtype=np.int32)
        self.stale = np.zeros(0, dtype=np.bool_)
        self.alarms = 0
        self.last = 1
        self.num_banned = 0

    def grant(self, pages: PageIds) -> int:
        """Give pages a serial of their own; those that somebody has already are banned. Returns how many those are."""
        self.last = self.last % SERIAL_MAX + 1
        before = self.serial[pages]
        self.serial[pages] = np.where(before < 0, self.last, before)
        self._alarm(pages)
        twice = pages[before > 0]
        self.ban(twice)
        return len(twice)

    def give_back(self, pages: PageIds) -> npt.NDArray[np.bool_] | None:
        """Pages are free again; say which of them may go back to the pool, None where all may."""
        before = self.serial[pages]
        self.serial[pages] = -np.abs(before)
        self._alarm(pages)
        return before != BANNED if self.num_banned and (before == BANNED).any() else None

    def _alarm(self, pages: PageIds) -> None:
        pages = pages[self.listed[pages] > 0]
        if not len(pages):
            return
        rows = self.row[pages]
        if (self.listed[pages] > 1).any() or (rows == SEVERAL).any():
            self.alarms += 1
        else:
            self.stale[rows] = True

    def ban(self, pages: PageIds) -> None:
        """Keep pages from everybody for good: whose table names one is refused."""
        if len(pages):
            self.num_banned += int((self.serial[np.unique(pages)] != BANNED).sum())
            self.serial[pages] = BANNED
            self.alarms += 1

    def clear(self) -> None:
        """All pages are free: the engine has emptied its pool."""
        self.serial = -np.abs(self.serial)
        self.alarms += 1
