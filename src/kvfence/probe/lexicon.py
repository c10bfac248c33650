"""Where marker words stand in a text, however they are dressed: exact, apart, split or garbled.

Case, Markdown, HTML escapes, line breaks, soft hyphens and full-width letters do not hide a word. *Exact*: words as
they stand. *Apart*: with up to three others between them. *Split*: with every space and sign taken out, so that
``lan- tern`` is found. *Garbled*: words that resemble one by 80 percent. Each reading of a text is a row of words, None
where something else stands between. Not for: what follows from it (``detectors/``).
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache

from ahocorasick_rs import AhoCorasick
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

FUZZY_MIN = 0.8
"""Likeness at which a word counts as a garbled marker's (one letter in five, or two letters changed places in ten)."""

LETTERS_MIN = 5
"""Shorter words are met exactly or not at all: too much else resembles them or has them inside."""

WORDS_MAX = 20_000
"""Distinct words of one text that are compared by likeness; a text with more is hostile, and read exactly alone."""

GAP_MAX = 3
RESEMBLES_MAX = 200_000
KEPT_MAX, KEPT_CHARS_MAX = 4_096, 4_096
"""Readings that are kept, because several detectors read the same answers; of texts no longer than this."""

_DRESS = re.compile("[*_`~\u00ad\u200b-\u200d\u2060\ufeff]")
_WORD = re.compile(r"[^\W_]+")

Row = list[str | None]


class Form(StrEnum):
    """How closely a word is met, from the strictest."""

    EXACT = "exact"
    APART = "apart"
    SPLIT = "split"
    GARBLED = "garbled"


class Lexicon:
    """The lists that markers are drawn from, ready to be looked for."""

    def __init__(self, lists: Sequence[Sequence[str]]) -> None:
        self.lists = tuple(frozenset(map(plain, each)) for each in lists)
        self.words = sorted(frozenset().union(*self.lists))
        self.known = frozenset(self.words)
        self._letters = [word for word in self.words if word.isalpha() and len(word) >= LETTERS_MIN]
        self._finder = AhoCorasick(self.words) if self.words else None
        self._resembles: dict[str, str | None] = {}
        self._read: dict[str, dict[Form, Row]] = {}

    def parts(self, marker: str) -> tuple[str, ...]:
        """Give a marker's words."""
        return words_of(marker)

    def standing_in(self, prompt: str) -> frozenset[str]:
        """Give every word of the lists that a prompt of ours has anywhere, parts of words included."""
        if self._finder is None:
            return frozenset()
        found = self._finder.find_matches_as_indexes(prompt.casefold(), overlapping=True)
        return frozenset(self.words[index] for index, _, _ in found)

    def rows(self, text: str) -> dict[Form, Row]:
        """Read a text in each form."""
        if text in self._read:
            return self._read[text]
        words = words_of(text)
        exact: Row = [word if word in self.known else None for word in words]
        apart = _close_gaps(exact)
        rows = {
            Form.EXACT: exact, Form.APART: apart, Form.SPLIT: self._split(words), Form.GARBLED: self._garbled(words)
        }  # fmt: skip
        if len(text) <= KEPT_CHARS_MAX:
            if len(self._read) >= KEPT_MAX:
                self._read.clear()
            self._read[text] = rows
        return rows

    def shows(self, text: str, markers: Sequence[str]) -> bool:
        """Do all words of one of the markers but one, or all, stand in a row in the text, in any form?"""
        rows = self.rows(text)
        for parts in map(self.parts, markers):
            size = max(len(parts) - 1, min(len(parts), 2))
            wanted = {parts[start : start + size] for start in range(len(parts) - size + 1)}
            for row in rows.values():
                if any(tuple(row[at : at + size]) in wanted for at in range(len(row) - size + 1)):
                    return True
        return False

    def _split(self, words: Sequence[str]) -> Row:
        """Read letters and digits without what stands between them: the longest word of the lists at each place."""
        row: Row = []
        end = 0
        for index, start, stop in self._longest("".join(words)):
            if start < end:
                continue
            if start > end:
                row.append(None)
            row.append(self.words[index])
            end = stop
        return row

    def _longest(self, text: str) -> Iterator[tuple[int, int, int]]:
        if self._finder is not None:
            found = self._finder.find_matches_as_indexes(text, overlapping=True)
            yield from sorted(found, key=lambda each: (each[1], -each[2]))

    def _garbled(self, words: Sequence[str]) -> Row:
        if len(self._resembles) > RESEMBLES_MAX:
            self._resembles.clear()
        new = sorted({word for word in words if word not in self._resembles})
        if len(new) <= WORDS_MAX:
            self._compare([word for word in new if word not in self.known])
        return [word if word in self.known else self._resembles.get(word) for word in words]

    def _compare(self, new: Sequence[str]) -> None:
        """Find for each new word the word of the lists that it resembles most; None where none is near."""
        self._resembles.update(dict.fromkeys(new))
        near = [word for word in new if len(word) >= LETTERS_MIN]
        for start in range(0, len(near) if self._letters else 0, 1000):
            part = near[start : start + 1000]
            likeness = cdist(part, self._letters, scorer=Indel.normalized_similarity, score_cutoff=FUZZY_MIN)
            for word, row in zip(part, likeness, strict=True):
                best = int(row.argmax())
                if row[best] > 0:
                    self._resembles[word] = self._letters[best]


@lru_cache(maxsize=2)
def lexicon_of(lists: tuple[tuple[str, ...], ...]) -> Lexicon:
    """Give the lists, ready to be looked for; made once."""
    return Lexicon(lists)


def _close_gaps(row: Row) -> Row:
    """Leave out other words where no more than ``GAP_MAX`` of them stand together."""
    closed: Row = []
    gap = 0
    for word in row:
        if word is None:
            gap += 1
            continue
        if gap > GAP_MAX:
            closed.append(None)
        closed.append(word)
        gap = 0
    return closed


def words_of(text: str) -> tuple[str, ...]:
    """Give a text's words, undressed."""
    return tuple(_WORD.findall(plain(text)))


def plain(text: str) -> str:
    """Undress a text: escapes, marks of Markdown, what cannot be seen, width and case of letters."""
    shown = html.unescape(text) if "&" in text else text
    return unicodedata.normalize("NFKC", _DRESS.sub("", shown)).casefold()
