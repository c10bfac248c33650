"""Another tenant's marker stands in an answer, or in the values of its headers.

What it rests on: markers are drawn by lot from known lists and told to nobody but their own tenant's requests. Whatever
a sound server answers, it answers without knowing the draw. So take the answers as fixed and ask how likely the *draw*
is to have hit what they hold: an answer in which words of the lists stand side by side can be hit by as many markers as
there are such windows, out of all that there are.

The bound: for each of ``TESTS`` tests (four ways of reading, whole markers, all but one word, two words in a row) p is
at most P(Binomial(markers, windows / all possible) >= markers hit). It counts distinct markers, not answers, because a
model that says one thing a hundred times has said one thing. Words of the asker's own prompt and markers never count.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from msgspec import Struct

from kvfence.probe.chance import at_least, share
from kvfence.probe.exchange import Exchange, Record
from kvfence.probe.finding import Finding, Severity, Sight, places_of
from kvfence.probe.lexicon import Form, Lexicon, Row, lexicon_of

NAME = "foreign-marker"
TESTS = 12
LIMITS = share(TESTS, may_leak=True)

Place = tuple[int, bool]
"""An answer's number, and whether it is its headers that are meant."""

Window = tuple[int, tuple[str, ...]]
"""Words in a row, and which place of a marker the first of them takes."""


class Planted(Struct, frozen=True):
    """One marker. Units: seconds on the run's clock, when it was first sent."""

    tenant: str
    number: int
    parts: tuple[str, ...]
    sent_s: float


class Test(Struct):
    """One way of looking: how many words in a row, and what was seen.

    ``hits``: by (tenant, marker's number) the answers, by place.
    """

    form: Form
    num_parts: int
    windows: set[Window]
    hits: dict[tuple[str, int], dict[Place, Exchange]]


def look(record: Record) -> list[Finding]:
    """Look for every other tenant's markers in every answer."""
    return _findings([(p, test) for p, test in tests_of(record) if test.hits and p <= LIMITS.suspect])


def near(record: Record) -> set[int]:
    """Name the answers that hold all words of a foreign marker but one, or all, whether by chance or not."""
    least = max(len(record.words) - 1, 1)
    found = [test for _, test in tests_of(record) if test.num_parts >= least]
    return {number for test in found for answers in test.hits.values() for number, _ in answers}


def tests_of(record: Record) -> list[tuple[float, Test]]:
    """Make every test, and give its p."""
    lexicon = lexicon_of(record.words)
    planted = planted_of(record, lexicon)
    tests = [Test(form, size, set(), {}) for form in Form for size in _sizes(len(lexicon.lists))]
    own = {tenant: _words(lexicon, markers) for tenant, markers in record.planted.items()}
    index = _index(planted, {test.num_parts for test in tests})
    for exchange in record.exchanges:
        for in_headers, text in places_of(exchange):
            rows = _foreign_rows(exchange, text, lexicon, own.get(exchange.ask.tenant, frozenset()))
            for test in tests if rows else ():
                windows = _windows(rows[test.form], test.num_parts, lexicon)
                _read(exchange, (exchange.ask.number, in_headers), windows, index, test)
    room = _room(lexicon, list(own.values()))
    return [(at_least(len(test.hits), len(planted), _rate(test, room)), test) for test in tests]


def planted_of(record: Record, lexicon: Lexicon) -> list[Planted]:
    """Give every marker with the time at which it was first sent."""
    first: dict[str, float] = {}
    for exchange in record.exchanges:
        for marker in exchange.ask.own:
            first[marker] = min(exchange.sent_s, first.get(marker, exchange.sent_s))
    return [
        Planted(tenant, number, lexicon.parts(marker), first[marker])
        for tenant, markers in record.planted.items()
        for number, marker in enumerate(markers)
        if marker in first
    ]


def _sizes(num_parts: int) -> Sequence[int]:
    """Give how many words in a row are looked for: all, all but one, two."""
    return sorted({num_parts, max(num_parts - 1, 2), 2} - {0, 1} if num_parts > 1 else {num_parts}, reverse=True)


def _words(lexicon: Lexicon, markers: Sequence[str]) -> frozenset[str]:
    return frozenset(part for marker in markers for part in lexicon.parts(marker))


def _index(planted: Sequence[Planted], sizes: set[int]) -> Mapping[Window, list[Planted]]:
    index: dict[Window, list[Planted]] = defaultdict(list)
    for each in planted:
        for size in sizes:
            for start in range(len(each.parts) - size + 1):
                index[start, each.parts[start : start + size]].append(each)
    return index


def _foreign_rows(exchange: Exchange, text: str, lexicon: Lexicon, own: frozenset[str]) -> dict[Form, Row]:
    """Read a text without the words that its asker knows; nothing where too little is left."""
    rows = lexicon.rows(text) if text else {}
    if not any(word for row in rows.values() for word in row):
        return {}
    known = own | lexicon.standing_in(exchange.ask.prompt)
    return {form: [None if word in known else word for word in row] for form, row in rows.items()}


def _read(
    exchange: Exchange, place: Place, windows: Iterator[Window], index: Mapping[Window, list[Planted]], test: Test
) -> None:
    for window in windows:
        test.windows.add(window)
        for each in index.get(window, ()):
            if each.tenant != exchange.ask.tenant and each.sent_s < exchange.ended_s:
                test.hits.setdefault((each.tenant, each.number), {})[place] = exchange


def _windows(row: Row, size: int, lexicon: Lexicon) -> Iterator[Window]:
    """Give all windows of so many words of the lists, in places of a marker where they can stand."""
    for at in range(len(row) - size + 1):
        part = tuple(word for word in row[at : at + size] if word is not None)
        if len(part) == size:
            for start in range(len(lexicon.lists) - size + 1):
                if all(word in lexicon.lists[start + place] for place, word in enumerate(part)):
                    yield start, part


def _room(lexicon: Lexicon, own: Sequence[frozenset[str]]) -> list[int]:
    """Give for each place how many words a foreign marker can have there at least, the asker's own being known."""
    return [
        max(1, len(each) - max((len(each & words) for words in own), default=0) - len(lexicon.lists) + 1)
        for each in lexicon.lists
    ]


def _rate(test: Test, room: Sequence[int]) -> float:
    """Give the chance that a marker drawn by lot has one of the windows."""
    return sum(1 / prod(room[start : start + len(words)]) for start, words in test.windows)


def _findings(found: Sequence[tuple[float, Test]]) -> list[Finding]:
    """Put what accuses together; each sight is told as strictly as it was met."""
    if not found:
        return []
    sights: dict[tuple[Place, str, int], Sight] = {}
    for _, test in found:
        for (tenant, number), answers in test.hits.items():
            for place, exchange in answers.items():
                seen = f"{test.num_parts} words of marker {number + 1}, {test.form}"
                sight = Sight(exchange=exchange, of=tenant, seen=seen, in_headers=place[1])
                sights.setdefault((place, tenant, number), sight)
    p = min(p for p, _ in found)
    num_answers, num_markers = len({place[0] for place, *_ in sights}), len({key[1:] for key in sights})
    return [
        Finding(
            detector=NAME,
            severity=Severity.LEAK if p <= LIMITS.leak else Severity.SUSPECT,
            message=f"{num_answers} answers hold words of {num_markers} markers that only other tenants have sent",
            p=p,
            limit=LIMITS.leak if p <= LIMITS.leak else LIMITS.suspect,
            sights=tuple(sights.values()),
        )
    ]
