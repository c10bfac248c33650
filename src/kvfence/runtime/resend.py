"""When to repeat a message that is not answered: soon at first, then ever more rarely."""

from collections.abc import Callable, Iterable

from kvfence.core.ids import AttemptId
from kvfence.protocol.events import Event, Resend

FIRST_S = 1.0
LONGEST_S = 8.0


class Resender:
    """Feeds ``Resend`` for attempts that stay unanswered; the interval doubles from 1 s to 8 s."""

    def __init__(self, feed: Callable[[Event], None]) -> None:
        self._feed = feed
        self._due: dict[AttemptId, tuple[float, float]] = {}

    def tick(self, now_s: float, unanswered: Iterable[AttemptId]) -> None:
        """Feed what is due; forget what has been answered."""
        before, self._due = self._due, {}
        for attempt in unanswered:
            due_s, interval_s = before.get(attempt, (now_s + FIRST_S, FIRST_S))
            if now_s >= due_s:
                interval_s = min(2 * interval_s, LONGEST_S)
                due_s = now_s + interval_s
                self._feed(Resend(attempt))
            self._due[attempt] = (due_s, interval_s)
