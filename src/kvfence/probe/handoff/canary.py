"""Prompts of two tenants of one's own, of an exact length in tokens, which a model goes on with by their marker.

A list of one line, over and over, cut where the next line begins. Two of one length differ in the marker alone: whoever
reads the other's pages behind a prompt of its own reads a whole prompt of the other's, and says the other's marker.
"""

import math
from collections.abc import Awaitable, Callable, Iterator

from msgspec import Struct

from kvfence.probe.handoff.errors import NotTried
from kvfence.probe.lexicon import Form, Lexicon
from kvfence.probe.words import LISTS

LINES_MIN = 3
"""Two lines are no list yet: a small model went on with them half of the time."""

WORDS_MIN = 2

Tokenise = Callable[[str, bool], Awaitable[list[int]]]
"""Gives a text's tokens; the second says whether it begins a prompt."""


class Canary(Struct, frozen=True):
    """A prompt in tokens, and the words of its marker that stand in each line."""

    tokens: tuple[int, ...]
    words: tuple[str, ...]

    def stands_in(self, text: str, lexicon: Lexicon) -> bool:
        """Do all words of the marker stand in a row in a text, dressed or run together, but not garbled?"""
        size = len(self.words)
        rows = (lexicon.rows(text)[form] for form in (Form.EXACT, Form.SPLIT))
        return any(tuple(row[at : at + size]) == self.words for row in rows for at in range(len(row) - size + 1))

    def chance_in(self, text: str) -> float:
        """Bound the chance that this marker stands in a text by accident: it was drawn evenly from so many."""
        return min(1.0, len(text) / math.prod(len(each) for each in LISTS[: len(self.words)]))


class Scribe:
    """Writes canaries, each with the next marker."""

    def __init__(self, tokenise: Tokenise, markers: Iterator[str]) -> None:
        self._tokenise, self._markers = tokenise, markers

    async def canary(self, num_tokens: int) -> Canary:
        """Write one of exactly so many tokens; where a line would stand there once, with a shorter marker.

        Raises:
            NotTried: no list fits in so few, or the markers are used up.
        """
        marker = next(self._markers, "")
        if not marker:
            raise NotTried("all markers are used up: try fewer cases, or fewer times")
        head = await self._tokenise("A list:\n", True)
        cue, filler = await self._tokenise("-", False), (await self._tokenise(" so", False))[:1]
        room = num_tokens - len(head) - len(cue)
        for count in range(len(LISTS), WORDS_MIN - 1, -1):
            words = tuple(marker.split()[:count])
            line = await self._tokenise(f"- {' '.join(words)}\n", False)
            if room >= LINES_MIN * len(line):
                lines, left = divmod(room, len(line))
                return Canary((*head, *filler * left, *line * lines, *cue), words)
        raise NotTried(f"{num_tokens} tokens hold no list of {LINES_MIN} lines")
