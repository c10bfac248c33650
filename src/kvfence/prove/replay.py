"""Live traces against the model: re-runs ``step`` line by line and says, of each trace, whether the protocol allows it.

CONFORMING: every line is what ``step`` does, no property broke, and the trace is whole. NOT ALLOWED: the first line
that is not. PROPERTY VIOLATED: what stands there follows from its rules, and those let a property break. UNKNOWN:
truncated, damaged, of another schema or build, or its beginning is gone; never read as conforming.
Read ``follow.py`` next.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import TraceError
from kvfence.prove.crossing import TRACES_MAX, Crossing
from kvfence.prove.follow import Departure, Follower
from kvfence.prove.watched import Watching
from kvfence.trace.reader import TraceReader, parts_of
from kvfence.trace.record import TraceHeader


class Ruling(StrEnum):
    """What is said of a trace."""

    NOT_ALLOWED = "not allowed"
    PROPERTY_VIOLATED = "property violated"
    UNKNOWN = "unknown"
    CONFORMING = "conforming"


_FROM_WORST = tuple(Ruling)


class TraceRuling(Struct, frozen=True):
    """One trace's verdict.

    ``why``: in one sentence; empty where it conforms to its end. ``violated``: by property, its first step.
    ``absent``, ``observed``: guards that its rules do not obey. ``reached``: the *sometimes* that happened.
    ``engine``: of a plug-in's trace, where it was; ``untold``: properties of which it does not see enough, so that
    nothing is said of them.
    """

    path: str
    verdict: Ruling
    why: str = ""
    role: str = ""
    life: str = ""
    num_steps: int = 0
    departure: Departure | None = None
    violated: dict[str, int] = {}
    absent: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    engine: str = ""
    untold: tuple[str, ...] = ()


class GuardAnswers(Struct, frozen=True):
    """How often one guard at one place gave each answer; one that never decided was not tested."""

    guard: str
    place: str
    passed: int = 0
    refused: int = 0
    observed: int = 0
    ignored: int = 0

    @property
    def asked(self) -> int:
        """How often it was asked."""
        return self.passed + self.refused + self.observed + self.ignored


class Replay(Struct, frozen=True):
    """What was found in several traces. ``num_compared``: messages and tokens held against their sender's trace."""

    verdict: Ruling
    traces: tuple[TraceRuling, ...]
    coverage: tuple[GuardAnswers, ...]
    num_steps: int
    num_compared: int
    num_elsewhere: int


class _Course:
    """One trace being replayed."""

    def __init__(self, path: Path, watch: Callable[[int], None], *, so_far: bool) -> None:
        self.path = path
        self.so_far = so_far
        self.why = ""
        self.reader: TraceReader | None = None
        self.follower: Follower | Watching | None = None
        self.departure: Departure | None = None
        try:
            self.reader = TraceReader(*parts_of(path), watch=watch)
        except TraceError as error:
            self.why = str(error)

    @property
    def header(self) -> TraceHeader | None:
        """Whose trace it is, where that can be read."""
        return self.reader.header if self.reader is not None else None

    @property
    def is_whole(self) -> bool:
        """Does it tell all that its node did?"""
        return not self.why and self.departure is None and self.reader is not None and self.reader.ended

    def run(self, number: int, crossing: Crossing) -> None:
        """Follow it to its end or to the first line that is not allowed."""
        if self.reader is None:
            return
        try:
            header = self.reader.header
            kind = Watching if header.engine else Follower
            self.follower = kind(header, number, crossing)
            self._follow(self.reader, self.follower)
        except TraceError as error:
            self.why = str(error)
        if self.follower is not None:
            self.follower.ask_everything()

    def _follow(self, reader: TraceReader, follower: Follower | Watching) -> None:
        for line in reader.steps():
            if not follower.num_steps and line.n != 1:
                raise TraceError(f"{self.path}: it begins at step {line.n}; what came before was not kept")
            if line.at_ns < follower.at_ns:
                raise TraceError(f"{self.path}: time goes back at step {line.n}")
            self.departure = follower.take(line)
            if self.departure is not None:
                return
        if not follower.num_steps:
            raise TraceError(f"{self.path}: it holds no step")
        if not reader.ended and not self.so_far:
            raise TraceError(f"{self.path}: no end after step {follower.num_steps}: cut off, or its process was killed")

    def ruling(self) -> TraceRuling:
        """Say what was found."""
        said = TraceRuling(str(self.path), Ruling.UNKNOWN, self.why)
        if self.header is not None:
            header = self.header
            said = replace(said, role=header.role, life=header.incarnation, engine=header.engine)
            said = replace(said, absent=header.absent, observed=header.observed)
        if self.follower is None:
            return said
        follower = self.follower
        said = replace(said, num_steps=follower.num_steps, violated=follower.broken)
        said = replace(said, reached=follower.reached, untold=follower.untold)
        if self.departure is not None:
            why = f"step {self.departure.step}: {self.departure.why}"
            return replace(said, verdict=Ruling.NOT_ALLOWED, why=why, departure=self.departure)
        if follower.broken:
            name, first = min(follower.broken.items(), key=lambda each: each[1])
            return replace(said, verdict=Ruling.PROPERTY_VIOLATED, why=f"step {first} breaks {name}")
        if self.why:
            return said
        return replace(said, verdict=Ruling.CONFORMING, why="" if self.is_whole else "so far: it has no end")


def replay(paths: Sequence[Path], watch: Callable[[int], None] = lambda _: None, *, so_far: bool = False) -> Replay:
    """Replay traces of one run, each to its end, and hold them against each other.

    ``watch``: is told the bytes of every line that was read. ``so_far``: a trace without an end, of a process that runs
    or was killed, may conform as far as it goes; one that was cut at a line cannot be told from it.

    Raises:
        OSError: a file cannot be opened.
    """
    with _uncollected():
        return _replay([_Course(path, watch, so_far=so_far) for path in paths])


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector from walking every kept step again and again: none is in a cycle."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _replay(courses: Sequence[_Course]) -> Replay:
    _refuse_repeated(courses)
    crossing = Crossing([c.header.incarnation if c.header is not None else "" for c in courses])
    for number, course in enumerate(courses):
        course.run(number, crossing)
    unsent, num_compared = crossing.unsent({n for n, course in enumerate(courses) if course.is_whole})
    for receiver, found in unsent.items():
        _depart(courses[receiver], found.step, courses[found.sender].path)
    rulings = tuple(course.ruling() for course in courses)
    verdict = min((each.verdict for each in rulings), key=_FROM_WORST.index, default=Ruling.UNKNOWN)
    followers = [course.follower for course in courses if course.follower is not None]
    num_steps = sum(each.num_steps for each in followers)
    return Replay(verdict, rulings, _coverage(followers), num_steps, num_compared, crossing.num_elsewhere)


def _refuse_repeated(courses: Iterable[_Course]) -> None:
    """Two traces of one life cannot both be its own."""
    seen: dict[str, Path] = {}
    for number, course in enumerate(courses):
        if number >= TRACES_MAX:
            course.why, course.reader = f"{course.path}: more than {TRACES_MAX} traces at once", None
        elif course.header is not None and course.header.incarnation in seen:
            first = seen[course.header.incarnation]
            course.why, course.reader = f"{course.path}: the same life as {first}", None
        elif course.header is not None:
            seen[course.header.incarnation] = course.path


def _depart(course: _Course, step: int, sender: Path) -> None:
    """A trace shows what its sender's does not: it is not allowed from there on, if it was until there."""
    if course.departure is None or step < course.departure.step:
        why = f"it shows a message or token that {sender} does not show as sent"
        course.departure = Departure(step, "", why)


def _coverage(followers: Sequence[Follower | Watching]) -> tuple[GuardAnswers, ...]:
    """Count the answers of every guard at every place whose traces are at hand."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for follower in followers:
        for (guard, place, answer), count in follower.decisions.items():
            answers = counts.setdefault((guard, place), {})
            answers[answer] = answers.get(answer, 0) + count
    asks = frozenset[str]().union(*(follower.asks for follower in followers))
    asked = sorted((guard, place) for guard, _, place in (each.partition("@") for each in asks))
    return tuple(_answers(guard, place, counts.get((guard, place), {})) for guard, place in asked)


def _answers(guard: str, place: str, counts: dict[str, int]) -> GuardAnswers:
    passed, refused, observed, ignored = (counts.get(each, 0) for each in ("pass", "refuse", "observed", "ignored"))
    return GuardAnswers(guard, place, passed, refused, observed, ignored)
