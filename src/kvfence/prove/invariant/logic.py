"""Formulas in two readings: as values of one finite state, or as terms for Z3. One text, so that they cannot differ.

Actions and conjuncts are functions of a ``Logic`` and a ``State``. What is checked on explored states
(``refinement.py``) is therefore the very formula that is proved (``induction.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, Protocol

from msgspec import Struct

Sort = Literal["attempt", "index", "page", "source", "life", "request"]
"""What can be any number of: ``page`` is a page of decode's pool, ``source`` one of some prefill pool, ``index`` a
position in a prompt (an integer), ``life`` one life of a prefill worker."""

Kind = Literal["attempt", "index", "page", "source", "life", "request", "int", "bool"]
Term = Any
Field = Callable[..., Term]


class Logic(Protocol):
    """What formulas are made with, beside ``==``, ``<``, ``+`` and the like."""

    def all(self, *parts: Term) -> Term:
        """Every part holds."""

    def any(self, *parts: Term) -> Term:
        """Some part holds."""

    def no(self, part: Term) -> Term:
        """It does not hold."""

    def where(self, condition: Term, one: Term, other: Term) -> Term:
        """One where the condition holds, else the other."""

    def each(self, sorts: Sequence[Sort], holds: Callable[..., Term]) -> Term:
        """It holds of everything of these sorts; only ever assumed, never to be shown."""


def implies(o: Logic, one: Term, other: Term) -> Term:
    """Where one holds, so does the other."""
    return o.any(o.no(one), other)


def among(o: Logic, value: Term, *constants: int) -> Term:
    """The value is one of these."""
    return o.any(*(value == constant for constant in constants))


class Values:
    """The reading over one finite state."""

    def __init__(self, domains: Mapping[str, Sequence[Term]]) -> None:
        self.domains = domains

    def all(self, *parts: Term) -> Term:
        """Every part holds."""
        return all(parts)

    def any(self, *parts: Term) -> Term:
        """Some part holds."""
        return any(parts)

    def no(self, part: Term) -> Term:
        """It does not hold."""
        return not part

    def where(self, condition: Term, one: Term, other: Term) -> Term:
        """One where the condition holds, else the other."""
        return one if condition else other

    def each(self, sorts: Sequence[Sort], holds: Callable[..., Term]) -> Term:
        """It holds of everything there is of these sorts."""
        return all(holds(*args) for args in product(*(self.domains[sort] for sort in sorts)))


class State:
    """A state: each field is a function of what it is said of. Changes make a new one and copy nothing."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields

    def __getattr__(self, name: str) -> Field:
        return self.fields[name]

    def but(self, **changes: Field) -> "State":
        """The same but for these fields."""
        return State({**self.fields, **changes})


class Parameter(Struct, frozen=True):
    """What an action is about: a name and its sort."""

    name: str
    sort: Kind


def at(o: Logic, field: Field, *key_and_value: Term) -> Field:
    """The field with another value at one place: its key, then the value."""
    *key, value = key_and_value
    return lambda *args: o.where(o.all(*(x == y for x, y in zip(args, key, strict=True))), value, field(*args))
