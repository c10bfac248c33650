"""What is kept of an answer far longer than any canary asks for: its beginning, and of the rest what may accuse.

A record holds every answer until it is judged, so a server that sends 200,000 characters to each of 400 requests would
fill memory. What is kept of the rest stands round words that markers are drawn from, whoever's they are. That goes by
the lists alone and not by the draw, so that what chance can do is counted in kept texts as it would be in whole ones.
Beyond the beginning a word is met as it stands: one that was split or garbled there, with no whole one near, is not.
"""

import re
from collections.abc import Collection, Iterator

from kvfence.probe.lexicon import plain

TEXT_CHARS_MAX = 16_384
"""An answer of 128 tokens, the most that is asked for, has about 600."""

EXCERPTS_CHARS_MAX = 8_192
ROUND_CHARS = 64
"""So much is kept on each side of a word: a marker, or a passage of three words."""

_WORD = re.compile(r"[^\W_]+")


def shorten(text: str, known: Collection[str]) -> str:
    """Give a text as it is kept; ``known``: every word of the lists."""
    if len(text) <= TEXT_CHARS_MAX:
        return text
    rest = plain(text[TEXT_CHARS_MAX - ROUND_CHARS :])
    kept, size = [text[:TEXT_CHARS_MAX]], 0
    for start, stop in _places(rest, known):
        size += stop - start
        if size > EXCERPTS_CHARS_MAX:
            break
        kept.append(rest[start:stop])
    return "\n".join(kept)


def _places(text: str, known: Collection[str]) -> Iterator[tuple[int, int]]:
    """Give the places round words of the lists, those that touch as one, none longer than all that is kept."""
    start, stop = 0, -1
    for found in _WORD.finditer(text):
        if found[0] not in known:
            continue
        if found.start() - ROUND_CHARS > stop or found.end() - start > EXCERPTS_CHARS_MAX // 2 - ROUND_CHARS:
            if stop >= 0:
                yield start, stop
            start = max(0, found.start() - ROUND_CHARS)
        stop = found.end() + ROUND_CHARS
    if stop >= 0:
        yield start, min(stop, len(text))
