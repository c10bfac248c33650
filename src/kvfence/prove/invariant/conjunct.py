"""One conjunct of the invariant, and how it is registered."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from kvfence.prove.invariant.logic import Logic, Sort, State, Term

Says = Callable[..., Term]


class Conjunct(Struct, frozen=True):
    """Holds of every reachable state, of everything of its sorts.

    ``safety``: what is promised; the others are there so that these can be shown. ``needs``: guards without which it
    is not claimed, because others carry the promise then.
    """

    name: str
    statement: str
    sorts: tuple[Sort, ...]
    says: Says
    safety: bool = False
    needs: tuple[str, ...] = ()

    def of(self, o: Logic, s: State, *args: Term) -> Term:
        """Say it of these."""
        return self.says(o, s, *args)


def conjunct(sorts: Sequence[Sort], *, safety: bool = False, needs: tuple[str, ...] = ()) -> Callable[[Says], Conjunct]:
    """Make a conjunct of a function: its name and first line are the conjunct's."""

    def made(says: Says) -> Conjunct:
        statement = (says.__doc__ or "").strip().splitlines()[0]
        return Conjunct(says.__name__.replace("_", "-"), statement, tuple(sorts), says, safety, needs)

    return made
