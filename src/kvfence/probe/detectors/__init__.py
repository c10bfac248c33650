"""One detector a file: what it sees in a record, and how often it would be wrong on a sound server.

Each file says what it rests on and its bound. Those that rest on chance share two budgets (``chance.py``); the others
rest on a premise, which their findings name.
"""

from collections.abc import Callable

from msgspec import Struct

from kvfence.probe.detectors import (
    amnesia,
    dependence,
    empty_answer,
    foreign_marker,
    foreign_passage,
    garbled_echo,
    impossible_speed,
    late_error,
    over_limit,
    prompt_tokens,
    repetition,
    shared_prefix,
    slow_refusal,
)
from kvfence.probe.exchange import Record
from kvfence.probe.finding import Finding, Severity


class Detector(Struct, frozen=True):
    """One detector. ``worst``: the most that it says; ``by_chance``: has it a share of the budgets?"""

    name: str
    look: Callable[[Record], list[Finding]]
    worst: Severity = Severity.SUSPECT
    by_chance: bool = True


ALL = (
    Detector(foreign_marker.NAME, foreign_marker.look, Severity.LEAK),
    Detector(foreign_passage.NAME, foreign_passage.look, Severity.LEAK),
    Detector(amnesia.NAME, amnesia.look),
    Detector(dependence.NAME, dependence.look),
    Detector(garbled_echo.NAME, garbled_echo.look, by_chance=False),
    Detector(impossible_speed.NAME, impossible_speed.look, by_chance=False),
    Detector(prompt_tokens.NAME, prompt_tokens.look, by_chance=False),
    Detector(over_limit.NAME, over_limit.look, by_chance=False),
    Detector(empty_answer.NAME, empty_answer.look),
    Detector(repetition.NAME, repetition.look),
    Detector(slow_refusal.NAME, slow_refusal.look, by_chance=False),
    Detector(late_error.NAME, late_error.look, by_chance=False),
    Detector(shared_prefix.NAME, shared_prefix.look),
)
"""From the gravest."""
