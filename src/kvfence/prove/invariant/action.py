"""One abstract action: when it may happen and what it changes, with the guards that are on."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from kvfence.protocol.guards import Place, Rules
from kvfence.prove.invariant.logic import Kind, State, Term

ParameterKind = Kind | Literal["pages", "lives"]
"""``pages``, ``lives``: any set of these, as a predicate."""


class Effect(Struct, frozen=True):
    """What an action asks for and what it leads to."""

    may: Term
    after: State


class Guards(Struct, frozen=True):
    """Which guards are on. ``asked``: those that were asked for, as ``guard@place``."""

    rules: Rules
    asked: set[str]

    def on(self, name: str, place: Place) -> bool:
        """Is it obeyed here?"""
        self.asked.add(f"{name}@{place}")
        return self.rules.enforces(name, place)


class Action(Struct, frozen=True):
    """Something that happens. ``parameters``: what it is about, one kind each, in the order ``does`` takes them."""

    name: str
    statement: str
    parameters: tuple[ParameterKind, ...]
    does: Callable[..., Effect]


def action(*parameters: ParameterKind) -> Callable[[Callable[..., Effect]], Action]:
    """Make an action of a function: its name and first line are the action's."""

    def made(does: Callable[..., Effect]) -> Action:
        statement = (does.__doc__ or "").strip().splitlines()[0]
        return Action(does.__name__.replace("_", "-"), statement, parameters, does)

    return made
