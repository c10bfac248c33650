"""The reading of formulas as terms for Z3, over sorts of any size.

Nothing here is quantified: what is assumed *of each* is said of the terms at hand, which is less and so is sound. Every
question is then in a decidable theory, and Z3 answers with a proof or with a state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

import z3

from kvfence.prove.invariant.fields import CHANGING, FIXED
from kvfence.prove.invariant.logic import Field, Kind, Sort, State, Term

SORTS: dict[str, z3.SortRef] = {
    **{name: z3.DeclareSort(name) for name in ("attempt", "page", "source", "life", "request")},
    "index": z3.IntSort(),
    "int": z3.IntSort(),
    "bool": z3.BoolSort(),
}

SETS = {"pages": "page", "lives": "life"}


class Terms:
    """The reading. ``at_hand``: the terms of which *each* is said."""

    def __init__(self, at_hand: Mapping[str, Sequence[Term]]) -> None:
        self.at_hand = at_hand

    def all(self, *parts: Term) -> Term:
        """Every part holds."""
        if any(part is False for part in parts):
            return False
        open_parts = [part for part in parts if part is not True]
        return z3.And(*open_parts) if len(open_parts) > 1 else open_parts[0] if open_parts else True

    def any(self, *parts: Term) -> Term:
        """Some part holds."""
        if any(part is True for part in parts):
            return True
        open_parts = [part for part in parts if part is not False]
        return z3.Or(*open_parts) if len(open_parts) > 1 else open_parts[0] if open_parts else False

    def no(self, part: Term) -> Term:
        """It does not hold."""
        return not part if isinstance(part, bool) else z3.Not(part)

    def where(self, condition: Term, one: Term, other: Term) -> Term:
        """One where the condition holds, else the other."""
        if isinstance(condition, bool):
            return one if condition else other
        return z3.If(condition, one, other)

    def each(self, sorts: Sequence[Sort], holds: Callable[..., Term]) -> Term:
        """It holds of every term at hand."""
        return self.all(*(holds(*args) for args in product(*(self.at_hand[sort] for sort in sorts))))


def _symbol(name: str, arguments: tuple[Sort, ...], value: Kind) -> Field:
    sorts = [SORTS[sort] for sort in arguments]
    if not sorts:
        constant = z3.Const(name, SORTS[value])
        return lambda: constant
    function: Field = z3.Function(name, *sorts, SORTS[value])
    return function


def symbolic() -> State:
    """Any state at all."""
    return State({name: _symbol(name, *signature) for name, signature in {**FIXED, **CHANGING}.items()})


def constants(kinds: Iterable[str], prefix: str) -> list[Term]:
    """Make one unknown of each kind; a set of pages or lives is an unknown predicate."""
    made: list[Term] = []
    for kind in kinds:
        number = sum(str(term).startswith(f"{prefix}-{kind}-") for term in made)
        name = f"{prefix}-{kind}-{number}"
        if kind in SETS:
            made.append(z3.Function(name, SORTS[SETS[kind]], z3.BoolSort()))
        else:
            made.append(z3.Const(name, SORTS[kind]))
    return made


def reachable(s: State, base: Mapping[str, Sequence[Term]], acting: Sequence[Term]) -> dict[str, list[Term]]:
    """Add to these terms those that one question about them leads to: owners, tables, workers.

    ``acting``: the attempts that an action is about.
    """
    attempts, pages, sources = list(base["attempt"]), list(base["page"]), list(base["source"])
    attempts += [s.owner(p) for p in pages] + [s.source_owner(t) for t in sources]
    attempts += [s.manifest(a) for a in base["attempt"]]
    indices = [*base["index"], *(s.index(p) for p in pages), *(s.source_index(t) for t in sources)]
    indices += [term for a in acting for term in (s.size(a) - 1, s.num_table(a), s.num_source(a))]
    pages += [s.table(a, i) for a in base["attempt"] for i in indices]
    sources += [s.source(a, i) for a in base["attempt"] for i in indices]
    sources += [s.source(s.owner(p), s.index(p)) for p in base["page"]]
    near = [s.stray_by(p) for p in base["page"]] + [s.pool(t) for t in base["source"]]
    near += [s.head_life(p) for p in base["page"]]
    lives = [*base["life"], *near, *(s.worker(a) for a in attempts)]
    return {"attempt": attempts, "index": indices, "page": pages, "source": sources, "life": lives}
