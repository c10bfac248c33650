"""What one place in a text says: readings, the notebook that keeps them, and the choice among them.

A parser only reads; a notebook keeps every reading with its origin; ``choose`` decides which one holds. Not for:
facts (``kvfence.evidence.facts``), formats (one module an engine).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from re import Match, Pattern
from typing import NamedTuple

from msgspec import Struct

from kvfence.evidence.facts import Origin

Value = int | float | bool | str

SIZES = frozenset(
    {
        "pool_tokens",
        "pool_tokens_estimated",
        "pool_tokens_swa",
        "context_len",
        "advertised_context",
        "effective_input_limit",
    }
)
"""Tokens: engines write nought or less where there is no such thing, or where they choose for themselves."""

READINGS_MAX = 4096
"""Of one name in one source; a log that repeats a line for ever keeps its first and its newest readings."""


_ORDER = itertools.count(1)
"""Every reading's place in the order of reading, whatever notebook it stands in: lines of rotated files start anew."""


class Reading(Struct, frozen=True):
    """One value, read at one place. ``weight``: how direct the evidence is; the heaviest reading holds."""

    name: str
    value: Value
    origin: Origin
    weight: int = 5
    default_of: str = ""
    order: int = 0


class Place(Struct, frozen=True):
    """Whose line it is: the process's own prefix, its data-parallel rank and its role, as far as the line says."""

    process: str = ""
    dp_rank: int | None = None


class Line:
    """One logical line: cleaned text, where it stands, whose it is, and (looked up when asked) what follows it."""

    __slots__ = (
        "_look",
        "_rest",
        "at",
        "continued",
        "is_unended",
        "number",
        "place",
        "problem",
        "request_at",
        "source",
        "text",
    )

    def __init__(
        self, text: str, number: int, source: str, look: Callable[[int], tuple[str, ...]] | None = None
    ) -> None:
        self.text = text
        self.number = number
        self.source = source
        self.place = Place()
        self.at: str | None = None
        self.continued = False
        self.is_unended = False
        self.problem = ""
        self.request_at = len(text)
        self._look = look
        self._rest: dict[int, tuple[str, ...]] = {}

    def rest(self, count: int = 6) -> tuple[str, ...]:
        """The cleaned lines that follow, at most ``count``; none where the text ends or the block does."""
        if count not in self._rest:
            self._rest[count] = self._look(count) if self._look else ()
        return self._rest[count]


class Found(NamedTuple):
    """A value in a line, before its origin is attached. ``near``: the argument's name beside which it stands."""

    name: str
    value: Value
    weight: int = 5
    default_of: str = ""
    near: str = ""


Reader = Callable[[Match[str], Line], Iterable[Found]]


class Form(Struct, frozen=True):
    """One form of line: literal anchors that a cheap scan finds, a pattern, and what the match says.

    Units:
        anchors: plain ASCII that stands in the raw line whatever wraps it (no quotes, no colour inside).
        in_requests: read in a line that logs a request too, and then only the match itself is quoted.
        settles: the line can only ever say the same again, so that it need not be looked for for ever.
    """

    engine: str
    anchors: tuple[str, ...]
    pattern: Pattern[str]
    read: Reader
    settles: bool = False
    in_requests: bool = False


class Notebook:
    """The readings of one process in one source, by name, in the order in which they were read."""

    def __init__(self, source: str, place: Place = Place()) -> None:
        self.source = source
        self.place = place
        self.engines: dict[str, int] = {}
        self.problems: list[str] = []
        self._readings: dict[str, list[Reading]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._readings

    def names(self) -> Iterator[str]:
        """The names that were read."""
        return iter(self._readings)

    def add(self, found: Found, origin: Origin) -> None:
        """Keep a reading; the middle of a very long row of readings is dropped, and so is a size below one."""
        name, value, weight, default_of, _ = found
        if name in SIZES and not isinstance(value, str) and value < 1:
            return
        row = self._readings.setdefault(name, [])
        row.append(Reading(name, value, origin, weight, default_of, next(_ORDER)))
        if len(row) > READINGS_MAX:
            del row[READINGS_MAX // 2]

    def saw(self, engine: str, weight: int = 1) -> None:
        """Count a line of an engine's own form."""
        self.engines[engine] = self.engines.get(engine, 0) + weight

    def all(self, name: str) -> list[Reading]:
        """Every reading of a name, in order."""
        return self._readings.get(name, [])

    def choose(self, name: str) -> Reading | None:
        """The reading that holds: the newest of the heaviest; None if there is none."""
        best: Reading | None = None
        for reading in self._readings.get(name, ()):
            if best is None or reading.weight >= best.weight:
                best = reading
        return best

    def number(self, name: str) -> int | None:
        """The whole number that holds for a name, or None."""
        reading = self.choose(name)
        if reading is None or isinstance(reading.value, (str, float)):
            return None
        return int(reading.value)

    def derive(self, found: Found, parent: Reading, note: str = "") -> None:
        """Add a value worked out from another reading; its origin is that reading's, its key says how."""
        origin = parent.origin
        key = note or origin.key
        self.add(found, Origin(origin.source, origin.line, origin.quote, origin.at, key))

    def forget_before(self, name: str, order: int) -> None:
        """Drop the readings of a name that were read before another reading, by its order."""
        kept = [reading for reading in self.all(name) if reading.order >= order]
        if kept:
            self._readings[name] = kept
        else:
            self._readings.pop(name, None)

    def merge(self, other: "Notebook") -> None:
        """Take over another notebook's readings (facts that hold for the whole source), before our own."""
        for name, row in other._readings.items():
            ours = self._readings.get(name, [])
            self._readings[name] = sorted([*row, *ours], key=lambda reading: reading.order)
        for engine, count in other.engines.items():
            self.engines[engine] = self.engines.get(engine, 0) + count
        self.problems = [*other.problems, *self.problems]
