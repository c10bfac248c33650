"""Counts outlive the worker that made them."""

from kvfence.runtime.lifeline import Beat
from kvfence.runtime.tally import add_beats


def test_what_a_former_life_counted_stays() -> None:
    """Outcomes, guard decisions and counters are summed; page states are the present ones alone."""
    past = Beat({"free": 3}, {"length": 2}, (("fits", "decode", "pass", 4),), counters={"passes": 10, "old": 1})
    now = Beat({"free": 8}, {"length": 1, "stop": 1}, (("fits", "decode", "pass", 1),), counters={"passes": 5})
    total = add_beats(past, now)
    assert total.states == {"free": 8}
    assert total.outcomes == {"length": 3, "stop": 1}
    assert total.decisions == (("fits", "decode", "pass", 5),)
    assert total.counters == {"passes": 15, "old": 1}
