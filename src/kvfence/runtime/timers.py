"""Deadlines that have not come yet. One whose attempt is over is dropped, so that it holds nothing until then."""

import asyncio
from collections.abc import Callable, Container

from kvfence.core.ids import AttemptId
from kvfence.protocol.events import DeadlinePassed, Event


class Timers:
    """Feeds ``DeadlinePassed`` when an attempt's time is over.

    Owner:
        The running event loop's thread.
    """

    def __init__(self, feed: Callable[[Event], None]) -> None:
        self._feed = feed
        self._handles: dict[AttemptId, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Give the number of deadlines that have not come."""
        return len(self._handles)

    def start(self, attempt: AttemptId, remaining_ns: int) -> None:
        """Let an attempt's time run."""
        loop = asyncio.get_running_loop()
        self._handles[attempt] = loop.call_later(remaining_ns / 1e9, self._fire, attempt)

    def keep(self, open_attempts: Container[AttemptId]) -> None:
        """Drop every deadline whose attempt is not among these."""
        for attempt in [attempt for attempt in self._handles if attempt not in open_attempts]:
            self._handles.pop(attempt).cancel()

    def _fire(self, attempt: AttemptId) -> None:
        self._handles.pop(attempt, None)
        self._feed(DeadlinePassed(attempt))
