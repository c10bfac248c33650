"""Unanswered messages are repeated, soon at first and then ever more rarely."""

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.events import Event, Resend
from kvfence.runtime.resend import Resender

ATTEMPT = AttemptId(Incarnation("a" * 32), 1)


def test_intervals_double_up_to_a_bound() -> None:
    """An attempt that stays unanswered is repeated after 1, 2, 4, 8, 8 seconds."""
    fed: list[Event] = []
    resender = Resender(fed.append)
    times = []
    for now in range(40):
        before = len(fed)
        resender.tick(float(now), [ATTEMPT])
        if len(fed) > before:
            times.append(now)
    assert times[:5] == [1, 3, 7, 15, 23]
    assert fed[0] == Resend(ATTEMPT)


def test_an_answered_attempt_starts_anew() -> None:
    """Once answered, an attempt is forgotten."""
    fed: list[Event] = []
    resender = Resender(fed.append)
    resender.tick(0.0, [ATTEMPT])
    resender.tick(0.9, [])
    resender.tick(1.5, [ATTEMPT])
    assert fed == []
