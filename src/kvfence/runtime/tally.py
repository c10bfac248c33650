"""Sums of heartbeats: what a slot's former lives counted is not lost with them.

Not for: showing them (``cli/compose.py`` hands them to ``/metrics``).
"""

from collections.abc import Hashable, Mapping
from typing import TypeVar

from kvfence.runtime.lifeline import Beat

K = TypeVar("K", bound=Hashable)


def add_beats(past: Beat, now: Beat) -> Beat:
    """Give the present state with everything that was ever counted."""
    decisions = _sum(
        {(guard, place, answer): count for guard, place, answer, count in past.decisions},
        {(guard, place, answer): count for guard, place, answer, count in now.decisions},
    )
    return Beat(
        states=now.states,
        outcomes=_sum(past.outcomes, now.outcomes),
        decisions=tuple((*asked, count) for asked, count in sorted(decisions.items())),
        fences=now.fences,
        wanted_pages=now.wanted_pages,
        counters=_sum(past.counters, now.counters),
        prefixes=_sum(past.prefixes, now.prefixes),
    )


def _sum(past: Mapping[K, int], now: Mapping[K, int]) -> dict[K, int]:
    return {key: past.get(key, 0) + now.get(key, 0) for key in {**past, **now}}
