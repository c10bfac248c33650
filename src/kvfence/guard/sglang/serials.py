"""Which grant each page of a pool belongs to, from the engine's own allocator: a serial a page.

Not for: which pages a request's table names (``tables.py``).
"""

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int64]

SERIAL_MAX = 2**31 - 1
"""Then serials begin anew: four bytes a page keep a large pool's in a core's cache, and no table stands that long."""

BANNED = 0
"""The serial of a page that was given to two: it is nobody's, and never is again."""


class Serials:
    """One pool's pages.

    Shapes:
        serial: [pages]; above 0 while granted, below while free, and what it was when it was granted last.
        listed: [pages]; in how many requests' tables a page stands, as far as these were looked at.
    ``alarms`` grows whenever a page that stands in a table is granted or given back: then tables are looked at whole.
    """

    def __init__(self, num_pages: int) -> None:
        self.serial = np.full(num_pages, -1, dtype=np.int32)
        self.listed = np.zeros(num_pages, dtype=np.int32)
        self.alarms = 0
        self.last = 1
        self.num_banned = 0

    def grant(self, pages: PageIds) -> int:
        """Give pages a serial of their own; those that somebody has already are banned. Returns how many those are."""
        self.last = self.last % SERIAL_MAX + 1
        before = self.serial[pages]
        self.serial[pages] = np.where(before < 0, self.last, before)
        if self.listed[pages].any():
            self.alarms += 1
        twice = pages[before > 0]
        self.ban(twice)
        return len(twice)

    def give_back(self, pages: PageIds) -> npt.NDArray[np.bool_] | None:
        """Pages are free again; say which of them may go back to the pool, None where all may."""
        before = self.serial[pages]
        self.serial[pages] = -np.abs(before)
        if self.listed[pages].any():
            self.alarms += 1
        return before != BANNED if self.num_banned and (before == BANNED).any() else None

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
