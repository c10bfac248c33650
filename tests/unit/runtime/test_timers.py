"""Deadlines come when they should, and hold nothing once their attempt is over."""

import asyncio

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.events import DeadlinePassed, Event
from kvfence.runtime.timers import Timers

FIRST, SECOND = (AttemptId(Incarnation("a" * 32), counter) for counter in (1, 2))


async def test_a_deadline_comes_once() -> None:
    """The event is fed when the time is over, and the timer is gone."""
    fed: list[Event] = []
    came = asyncio.Event()

    def feed(event: Event) -> None:
        fed.append(event)
        came.set()

    timers = Timers(feed)
    timers.start(FIRST, 1)
    await asyncio.wait_for(came.wait(), 5)
    assert fed == [DeadlinePassed(FIRST)]
    assert len(timers) == 0


async def test_the_deadline_of_an_attempt_that_is_over_is_dropped() -> None:
    """Only attempts that are still open keep their timers."""
    timers = Timers(lambda _: None)
    timers.start(FIRST, 10**12)
    timers.start(SECOND, 10**12)
    timers.keep({SECOND})
    assert len(timers) == 1
    timers.keep(set())
    assert len(timers) == 0
