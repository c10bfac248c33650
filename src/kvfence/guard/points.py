"""A place where a guard enters an engine, by dotted name: looked up in what is installed, or read out of a wheel."""

import pkgutil
from typing import Literal

from msgspec import Struct

How = Literal["before", "after", "around"]


class Point(Struct, frozen=True):
    """One place. ``names``: alternatives; the first that a release has is hooked. ``how``: where the guard stands."""

    key: str
    names: tuple[str, ...]
    how: How = "around"


def found(point: Point) -> str | None:
    """Give the first of a point's names that stands in the installed release; None where none does.

    A method counts where it is written, not where it is inherited; so does a field that a class annotates.
    """
    return next((name for name in point.names if _is_there(name)), None)


def _is_there(name: str) -> bool:
    owner_name, _, attribute = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_name)
    except (ImportError, AttributeError):
        return False
    return attribute in vars(owner) or attribute in vars(owner).get("__annotations__", ())
