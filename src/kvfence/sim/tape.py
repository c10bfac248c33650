"""Every choice of a run, written down as it is drawn, and played again from what is left of it.

A seed draws as the standard generator does. Played from a tape, a choice that is missing, or of another kind than the
tape says, is the quiet one: the most urgent thing, no fault, the first of several. So a tape from which choices were
cut is still a run, and a quieter one (``shrink.py``).
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal

from msgspec import Struct

QUIET = 1.0 - 1e-9
"""A number that is below no probability: the fault is not drawn."""


class Choice(Struct, frozen=True, array_like=True):
    """One choice. ``kind``: a number in 0 .. 1, one of several, or what happened next (``name``, the n-th of it)."""

    kind: Literal["number", "index", "action"]
    value: float
    name: str = ""


class Tape(Random):
    """A generator that writes down what it draws, or with ``choices`` draws what is written there.

    Holds: ``drawn``, every choice so far.
    """

    def __new__(cls, seed: int, choices: Sequence[Choice] | None = None) -> "Tape":
        """Take the arguments of ``__init__``; the generator's own constructor knows the seed alone."""
        del choices
        return super().__new__(cls, seed)  # type: ignore[call-arg]

    def __init__(self, seed: int, choices: Sequence[Choice] | None = None) -> None:
        self.drawn: list[Choice] = []
        self._rest: Iterator[Choice] | None = iter(choices) if choices is not None else None
        self._nested = False
        super().__init__(seed)

    def random(self) -> float:
        """Draw a number in 0 .. 1."""
        if self._nested:
            return super().random()
        value = super().random() if self._rest is None else self._next("number", QUIET).value
        self.drawn.append(Choice("number", value))
        return value

    def _randbelow(self, n: int) -> int:
        """Draw one of several: all that is not a number or an action ends here."""
        if self._rest is None:
            value = int(self._randbelow_with_getrandbits(n))  # type: ignore[attr-defined]
        else:
            value = min(int(self._next("index", 0).value), n - 1)
        self.drawn.append(Choice("index", value))
        return value

    def choose(self, actions: Sequence[Any], weights: Sequence[float]) -> Any:
        """Draw what happens next, by weight. ``actions`` have a ``kind``."""
        if self._rest is None:
            self._nested = True
            action = self.choices(actions, weights)[0]
            self._nested = False
        else:
            action = self._like(self._next("action", 0), actions)
        alike = [each for each in actions if each.kind == action.kind]
        place = next(number for number, each in enumerate(alike) if each is action)
        self.drawn.append(Choice("action", place, action.kind))
        return action

    def _like(self, choice: Choice, actions: Sequence[Any]) -> Any:
        alike = [each for each in actions if each.kind == choice.name]
        return alike[min(int(choice.value), len(alike) - 1)] if alike else actions[0]

    def _next(self, kind: Literal["number", "index", "action"], quiet: float) -> Choice:
        """Give the tape's next choice; where it is of another kind it is lost, and the quiet one stands for it."""
        choice = next(self._rest, None) if self._rest is not None else None
        return choice if choice is not None and choice.kind == kind else Choice(kind, quiet)
