"""Finds the lines that say something in gigabytes of text: one automaton over big blocks, decoding only candidates.

Not for: what the lines mean (the forms of each engine). Read ``readings.Form`` first.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter

import ahocorasick_rs

from kvfence.evidence.facts import Origin
from kvfence.evidence.lines import Unwrapped, begins_record, joined, place_of, quote, request_starts, time_of
from kvfence.evidence.raw_lines import RawLine, completed, look_ahead, segments
from kvfence.evidence.readings import Form, Found, Line, Notebook, Place
from kvfence.evidence.sources import Block

READS_OF_AN_ANCHOR_MAX = 256
"""So often is one anchor's line read in full; after that, the last one of each block. Events are always counted."""

SETTLED_READS = 64
NOTEBOOKS_MAX = 4096
PROBLEMS_MAX = 50
SEGMENTS_MAX = 64
MATCHES_OF_A_LINE_MAX = 8

EVENT = "event"
_Key = tuple[str, int | None]
_Hit = tuple[int, int, int]


class Counted:
    """How often an event's anchor was hit, with its first and last line."""

    __slots__ = ("count", "first", "last")

    def __init__(self, first: Origin) -> None:
        self.count = 0
        self.first = first
        self.last = first


class Scan:
    """One pass over one source: fills a notebook for each process and rank it meets."""

    def __init__(self, name: str, forms: Sequence[Form]) -> None:
        self.name = name
        self.books: dict[_Key, Notebook] = {}
        self.events: dict[_Key, dict[str, Counted]] = {}
        self.truncated_line = False
        self.problems: list[str] = []
        self._quoted = name
        self.sampled: set[str] = set()
        self._anchors: list[str] = []
        self._forms: list[list[Form]] = []
        self._read: list[int] = []
        index: dict[str, int] = {}
        for form in forms:
            for anchor in chain.from_iterable(map(_wrapped, form.anchors)):
                at = index.setdefault(anchor, len(index))
                if at == len(self._anchors):
                    self._anchors.append(anchor)
                    self._forms.append([])
                    self._read.append(0)
                self._forms[at].append(form)
        self._limit = [
            SETTLED_READS if all(form.settles for form in each) else READS_OF_AN_ANCHOR_MAX for each in self._forms
        ]
        self._settled: set[int] = set()
        self._unread: Counter[str] = Counter()
        self._index: list[int] = []
        self._automaton = _automaton(tuple(self._anchors))

    def book(self, place: Place) -> Notebook:
        """The notebook of a process and rank."""
        key = (place.process, place.dp_rank)
        if key not in self.books:
            if len(self.books) >= NOTEBOOKS_MAX:
                return self.books[next(iter(self.books))]
            self.books[key] = Notebook(self.name, place)
        return self.books[key]

    def shared(self) -> Notebook:
        """The notebook of what holds for the whole source."""
        return self.book(Place())

    def feed(self, blocks: Iterable[Block], source: str = "") -> None:
        """Read blocks of whole lines, in order; ``source`` is named in quotes where it is not the scan's own name."""
        self._quoted = source or self.name
        for block in blocks:
            hits = self._automaton.find_matches_as_indexes(block.data)
            if hits:
                if self._settled:
                    hits = [(self._index[index], start, end) for index, start, end in hits]
                self._read_block(block, hits)
                self._drop_settled()

    def _read_block(self, block: Block, hits: Sequence[_Hit]) -> None:
        data, position, number = block.data, 0, block.first_line
        for start, anchors in self._candidates(data, hits):
            number += data.count(b"\n", position, start)
            position = start
            end = data.find(b"\n", start)
            self._read_line(RawLine(block, start, len(data) if end < 0 else end, number), anchors)

    def _candidates(self, data: bytes, hits: Sequence[_Hit]) -> Iterator[tuple[int, dict[int, int]]]:
        """Lines to read, each with its anchors and where they are, in order."""
        line_start, line_end, anchors = -1, -1, dict[int, int]()
        for index, offset, _ in self._thinned(hits):
            if offset >= line_end or line_start < 0:
                if anchors:
                    yield line_start, anchors
                anchors = {}
                line_start = data.rfind(b"\n", 0, offset) + 1
                line_end = data.find(b"\n", offset)
                line_end = len(data) if line_end < 0 else line_end
            if index not in anchors:
                self._read[index] += 1
                anchors[index] = offset
        if anchors:
            yield line_start, anchors

    def _thinned(self, hits: Sequence[_Hit]) -> Sequence[_Hit]:
        """The hits without those of anchors that were read often enough, but for the block's last of each."""
        counts = Counter(map(itemgetter(0), hits))
        left = {index: max(0, self._limit[index] - self._read[index]) for index in counts}
        often = {index for index, count in counts.items() if count > left[index]}
        if not often:
            return hits
        last = {hit[0]: hit for hit in hits}
        kept: list[_Hit] = []
        for hit in hits:
            index = hit[0]
            if index not in often or hit is last[index]:
                kept.append(hit)
            elif left[index]:
                left[index] -= 1
                kept.append(hit)
        read = Counter(map(itemgetter(0), kept))
        for index in often:
            self._count_more(index, counts[index] - read[index])
        return kept

    def _count_more(self, index: int, count: int) -> None:
        anchor = self._anchors[index]
        if count:
            self.sampled.add(anchor)
            self._unread[anchor] += count

    def settle_counts(self) -> None:
        """Add the lines that were counted and not read to the event that their anchor was read as."""
        for anchor, count in self._unread.items():
            for events in self.events.values():
                if (counted := events.get(anchor)) is not None:
                    counted.count += count
                    break
        self._unread.clear()

    def _drop_settled(self) -> None:
        """Stop looking for anchors that can only repeat themselves once they were read often enough."""
        settled = {
            at for at in range(len(self._anchors))
            if self._limit[at] == SETTLED_READS <= self._read[at]
        }  # fmt: skip
        if settled - self._settled:
            self._settled |= settled
            kept = [at for at in range(len(self._anchors)) if at not in self._settled]
            self._index = kept
            self._automaton = _automaton(tuple(self._anchors[at] for at in kept))

    def _read_line(self, raw: RawLine, anchors: dict[int, int]) -> None:
        text = raw.text(min(anchors.values()))
        self.truncated_line = self.truncated_line or raw.cut
        for segment in islice(segments(text), SEGMENTS_MAX):
            wrapped = Unwrapped(segment)
            body = completed(wrapped, raw)
            inner = body.split("\n") if "\n" in body else [body]
            for offset, part in enumerate(inner):
                following = tuple(inner[offset + 1 :])
                line = Line(part, raw.number, self._quoted, look_ahead(following, raw))
                line.place = place_of(part, wrapped.process)
                line.at = time_of(part) or wrapped.at
                line.continued = raw.continues
                line.request_at = request_starts(part)
                line.is_unended = raw.is_unended
                self._read_forms(line, anchors)

    def _read_forms(self, line: Line, anchors: dict[int, int]) -> None:
        seen: set[int] = set()
        for index in anchors:
            for form in self._forms[index]:
                if id(form) not in seen:
                    seen.add(id(form))
                    self._read_form(form, index, line)

    def _read_form(self, form: Form, index: int, line: Line) -> None:
        if "\n" not in self._anchors[index] and not any(anchor in line.text for anchor in form.anchors):
            return
        for text, match in matches(form, line):
            in_request = match.start() >= (line.request_at if text is line.text else request_starts(text))
            if in_request and not form.in_requests:
                continue
            found = list(form.read(match, line))
            if not found:
                continue
            if line.is_unended and _ends_with_one(text, found):
                line.problem = f"the text ends right after {text[-20:].strip()!r}: it may have been cut off there"
            book = self.book(line.place)
            if line.problem and line.problem not in book.problems and len(book.problems) < PROBLEMS_MAX:
                book.problems.append(line.problem)
            origin = Origin(
                line.source,
                line.number,
                quote(match[0] if in_request else text, 0 if in_request else match.start()),
                line.at,
            )
            book.saw(form.engine)
            for item in found:
                if item.name == EVENT:
                    self._count(book, index, Counted(origin), str(item.value))
                elif item.near:
                    book.add(item, Origin(line.source, line.number, quote_near(line.text, text, item.near), line.at))
                else:
                    book.add(item, origin)

    def _count(self, book: Notebook, index: int, new: Counted, name: str) -> None:
        events = self.events.setdefault((book.place.process, book.place.dp_rank), {})
        counted = events.setdefault(name, new)
        events.setdefault(self._anchors[index], counted)
        counted.count += 1
        counted.last = new.first


def _wrapped(anchor: str) -> Iterator[str]:
    """An anchor as it stands in a text, and as an editor breaks it into two lines at one of its spaces."""
    yield anchor
    for at, character in enumerate(anchor):
        if character == " " and 3 < at < len(anchor) - 3:
            yield f"{anchor[:at]}\n{anchor[at + 1 :]}"


def matches(form: Form, line: Line) -> Iterator[tuple[str, re.Match[str]]]:
    """The form's matches in a line; where there is none, in the line joined with its continuation."""
    text = line.text
    found = list(islice(form.pattern.finditer(text), MATCHES_OF_A_LINE_MAX))
    if found and not _number_goes_on(found[-1], line):
        for match in found:
            yield text, match
        return
    for cut in (True, False) if found else (False, True):
        whole = joined(text, line.rest(), cut)
        again = form.pattern.search(whole) if whole != text else None
        if again is not None and again.start() < len(text):
            yield whole, again
            return
    for match in found:
        yield text, match


def _number_goes_on(match: re.Match[str], line: Line) -> bool:
    """Whether the matched text ends in a digit at the very end of the line and the next line begins with one."""
    text = line.text
    if match.end() < len(text) or not text[-1:].isdigit():
        return False
    rest = line.rest()
    return bool(rest) and rest[0][:1].isdigit() and not begins_record(rest[0])


def _ends_with_one(text: str, found: Sequence[Found]) -> bool:
    """Whether one of the values is the last thing in a text: more of it may have been cut off."""
    end = text[-40:].rstrip("}]").replace(",", "").replace("_", "")
    return end[-1:].isalnum() and any(end.endswith(str(item.value)) for item in found)


def quote_near(whole: str, text: str, key: str) -> str:
    """A quote around an argument's name, however it is spelled there."""
    for each in (text, whole):
        for spelled in (key, key.replace("_", "-")):
            if (at := each.find(spelled)) >= 0:
                return quote(each, at)
    return quote(text)


_automata: dict[tuple[str, ...], ahocorasick_rs.BytesAhoCorasick] = {}


def _automaton(anchors: tuple[str, ...]) -> ahocorasick_rs.BytesAhoCorasick:
    if anchors not in _automata:
        # Of this many anchors the library would make an automaton that is smaller and half as fast.
        dfa = ahocorasick_rs.Implementation.DFA
        _automata[anchors] = ahocorasick_rs.BytesAhoCorasick([each.encode() for each in anchors], implementation=dfa)
    return _automata[anchors]
