"""Every guard taken away and put back: alone, with all others on; the smallest sets that suffice; known mistakes."""

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import TypeVar

from msgspec import Struct

from kvfence.protocol.guards import GUARDS
from kvfence.prove.bounds import Bounds
from kvfence.prove.cases import CASES, HAZARDS, MISTAKES, Hazard, Mistake, without
from kvfence.prove.search import Limits, Search
from kvfence.prove.story import Moment, tell

LIMITS = Limits(cpu_s_max=60, memory_max=6 * 10**9)

Progress = Callable[[str], None]


class Tried(Struct, frozen=True):
    """One search. ``verdict``: broken, safe (every world seen) or unknown."""

    verdict: str
    property: str
    states: int
    cpu_s: float
    trace: tuple[Moment, ...] = ()


class GuardRow(Struct, frozen=True):
    """What one guard does.

    ``alone``: the guards away with it, to make it the last line. ``without_it``, ``with_it``: the search in both
    worlds. ``removed``: with all others on. ``redundant_under``: the guards that stop the fault where removal shows
    nowhere.
    """

    guard: str
    fault: str
    alone: tuple[str, ...]
    without_it: Tried
    with_it: Tried
    removed: Tried
    redundant_under: tuple[str, ...]
    trace: tuple[Moment, ...]

    @property
    def ok(self) -> bool:
        """Is it found when away, enough when back, and needed or said to be redundant?"""
        needed = self.removed.verdict == "broken" or bool(self.redundant_under)
        return (self.without_it.verdict, self.with_it.verdict) == ("broken", "safe") and needed

    @property
    def undecided(self) -> bool:
        """Did a limit end a search before it could tell?"""
        return "unknown" in (self.without_it.verdict, self.with_it.verdict, self.removed.verdict)


class HazardRow(Struct, frozen=True):
    """The smallest sets of guards that stop a hazard, all others of its guards away."""

    hazard: str
    guards: tuple[str, ...]
    sufficient: tuple[tuple[str, ...], ...]
    unknown: int

    @property
    def ok(self) -> bool:
        """Is there a set that suffices, and was every set judged?"""
        return bool(self.sufficient) and not self.unknown

    @property
    def undecided(self) -> bool:
        """Was a set left that nobody judged?"""
        return bool(self.unknown)


class MistakeRow(Struct, frozen=True):
    """A known mistake: refuted by a counterexample that some guard then answers, or why it cannot be made here."""

    id: str
    error: str
    source: str
    refuted: bool
    answers: tuple[str, ...]
    inexpressible: str
    elsewhere: str
    trace: tuple[Moment, ...] = ()
    undecided: bool = False

    @property
    def ok(self) -> bool:
        """Is it refuted, or said why not?"""
        return self.refuted or bool(self.inexpressible)


Row = TypeVar("Row", GuardRow, HazardRow, MistakeRow)


class Matrix(Struct, frozen=True):
    """Everything."""

    guards: tuple[GuardRow, ...]
    hazards: tuple[HazardRow, ...]
    mistakes: tuple[MistakeRow, ...]

    @property
    def ok(self) -> bool:
        """Was everything seen that is expected?"""
        return all(row.ok for row in self.rows)

    @property
    def undecided(self) -> bool:
        """Is all that is missing what a limit left untold? Else something was seen that is not expected."""
        missing = [row for row in self.rows if not row.ok]
        return bool(missing) and all(row.undecided for row in missing)

    @property
    def rows(self) -> tuple[GuardRow | HazardRow | MistakeRow, ...]:
        """Give all of them."""
        return (*self.guards, *self.hazards, *self.mistakes)


def search(bounds: Bounds, harm: Iterable[str], *, told: bool = False) -> Tried:
    """Look for a harm; with ``told`` its story, too."""
    looking = Search(bounds, LIMITS, tuple(harm))
    result = looking.run()
    way = next((way for way in result.broken if way.name in harm), None)
    if way is None:
        return Tried("safe" if result.exhausted else "unknown", "", result.states, result.cpu_s)
    trace = tell(looking, way).moments if told else ()
    return Tried("broken", way.name, result.states, result.cpu_s, trace)


def guard_row(name: str) -> GuardRow:
    """Take a guard away, alone and with all others on, and put it back."""
    guard, case = GUARDS[name], CASES[name]
    found = search(without(case, name, *guard.alone), case.harm, told=True)
    back = search(without(case, *guard.alone), case.harm)
    shows = case.by_itself or case
    removed = search(without(shows, name), shows.harm)
    redundant: tuple[str, ...] = ()
    if removed.verdict == "safe":
        stood_in = search(without(case, name, *guard.redundant, *guard.alone), case.harm)
        redundant = tuple(guard.redundant) if stood_in.verdict == "broken" else ()
        removed = stood_in if stood_in.verdict == "unknown" else removed
    return GuardRow(name, guard.fault, guard.alone, _untold(found), back, removed, redundant, found.trace)


def _untold(tried: Tried) -> Tried:
    return Tried(tried.verdict, tried.property, tried.states, tried.cpu_s)


def hazard_row(hazard: Hazard) -> HazardRow:
    """Try every set of a hazard's guards, the smallest first."""
    sufficient: list[tuple[str, ...]] = []
    unknown = 0
    for size in range(len(hazard.guards) + 1):
        for kept in combinations(hazard.guards, size):
            if any(set(enough) <= set(kept) for enough in sufficient):
                continue
            away = [guard for guard in hazard.guards if guard not in kept]
            tried = search(without(hazard.case, *away), hazard.case.harm)
            unknown += tried.verdict == "unknown"
            if tried.verdict == "safe":
                sufficient.append(kept)
    return HazardRow(hazard.name, hazard.guards, tuple(sufficient), unknown)


def mistake_row(mistake: Mistake) -> MistakeRow:
    """Make a mistake and look for what it does; with its guards on it does nothing."""
    facts = (mistake.id, mistake.error, mistake.source)
    if mistake.case is None:
        return MistakeRow(*facts, False, mistake.answers, mistake.inexpressible, mistake.elsewhere)
    found = search(without(mistake.case, *mistake.without), mistake.case.harm, told=True)
    stopped = search(mistake.case.bounds, mistake.case.harm)
    verdicts = (found.verdict, stopped.verdict)
    refuted, undecided = verdicts == ("broken", "safe"), "unknown" in verdicts
    reasons = (mistake.answers, mistake.inexpressible, mistake.elsewhere)
    return MistakeRow(*facts, refuted, *reasons, found.trace, undecided)


def matrix(guards: Iterable[str] = (), progress: Progress | None = None) -> Matrix:
    """Run all of it, or some guards alone."""
    names = tuple(guards) or tuple(GUARDS)
    whole = not tuple(guards)

    def said(name: str, row: Row) -> Row:
        if progress is not None:
            progress(name)
        return row

    return Matrix(
        tuple(said(name, guard_row(name)) for name in names),
        tuple(said(hazard.name, hazard_row(hazard)) for hazard in HAZARDS) if whole else (),
        tuple(said(mistake.id, mistake_row(mistake)) for mistake in MISTAKES) if whole else (),
    )
