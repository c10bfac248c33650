"""How many requests are open, and waiting when the server asks to: one pause for all, never into an overload."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PAUSE_S_MAX = 120.0
"""Whoever asks for more has no use for a probe today."""

PAUSE_S = 1.0
STRIKES_MAX = 12


class Overloaded(Exception):
    """The server asks to come back later, again and again: the run ends with what it has."""


class TooLate(Exception):
    """The server asks to come back when the run's time is over: that time ends it, and nobody asks before."""


class Pacer:
    """Slots for open requests; fewer after each refusal for load, one more after each run of answers.

    Units: ends_s: when the run's time is over, on the monotonic clock; no pause outlasts it.
    """

    def __init__(self, concurrency: int, retries: int, ends_s: float = math.inf) -> None:
        self.concurrency, self.width, self.ends_s = concurrency, concurrency, ends_s
        self.retries_left = retries
        self.refused = 0
        self._open = 0
        self._strikes = 0
        self._turn = 0
        self._answered = 0
        self._resume_s = 0.0
        self._freed = asyncio.Condition()

    @property
    def in_flight(self) -> int:
        """Give how many requests are open."""
        return self._open

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """Hold one slot, once there is one and no pause; give the turn that ``limited`` is told.

        Raises:
            Overloaded: too many refusals for load, one after the other.
            TooLate: the pause lasted until the run's time was over.
        """
        async with self._freed:
            await self._freed.wait_for(lambda: self._open < self.width)
            self._open += 1
        try:
            await self._paused()
            yield self._turn
        finally:
            async with self._freed:
                self._open -= 1
                self._freed.notify_all()

    async def _paused(self) -> None:
        if self._strikes >= STRIKES_MAX:
            raise Overloaded
        if (left := self._resume_s - time.monotonic()) <= 0:
            return
        await asyncio.sleep(min(left, self.ends_s - time.monotonic()))
        if self._resume_s >= self.ends_s:
            raise TooLate
        await self._paused()  # the pause may have grown

    def answered(self) -> None:
        """Take note that the server keeps up."""
        self._strikes = 0
        self._answered += 1
        if self.width < self.concurrency and self._answered >= self.width:
            self.width, self._answered = self.width + 1, 0

    def limited(self, retry_after_s: float | None, turn: int) -> None:
        """Take note that the server asks to come back later: all streams wait, and fewer are open.

        Refusals of one turn are one strike: whoever lets eight in refuses eight of sixteen that come together.
        """
        self.refused += 1
        self._answered = 0
        if turn == self._turn:
            self._turn += 1
            self._strikes += 1
            self.width = max(1, self.width // 2)
        asked = retry_after_s if retry_after_s is not None else PAUSE_S * 2 ** min(max(self._strikes, 1) - 1, 5)
        if asked > PAUSE_S_MAX:
            self._strikes = STRIKES_MAX
        self._resume_s = max(self._resume_s, time.monotonic() + min(max(asked, 0.0), PAUSE_S_MAX))

    def may_retry(self) -> bool:
        """Take one of the run's few second tries."""
        if self.retries_left <= 0:
            return False
        self.retries_left -= 1
        return True
