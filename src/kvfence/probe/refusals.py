"""What a server's words about a refusal say: the limit it names, the length it counted, and the words, cut short.

Not for: whether a refusal was due (``detectors/``).
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from kvfence.evidence.visible import plain

MESSAGE_CHARS_MAX = 300
_NUMBER = r"([0-9][0-9,_]*)"

_LIMITS = tuple(
    re.compile(pattern.replace("N", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"maximum allowed length \(N tokens",  # SGLang: its pool
        r"maximum context length (?:is|of) N",  # OpenAI, vLLM
        r"context length \(N tokens",  # SGLang: its context
        r"max(?:imum)?[_ ]model[_ ]len(?:gth)?\D{0,20}N",
        r"(?:tokens|pages): [0-9]+ of N, does not fit",  # kvfence
        r"context (?:size|window|length)[^0-9]{0,30}N",  # llama.cpp and others
        r"(?:at most|limit(?: of| is)?|up to|<=) N (?:input |prompt )?tokens",
    )
)
"""Where several are named, the first pattern that fits says the limit."""

_COUNTS = tuple(
    re.compile(pattern.replace("N", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"input (?:length )?\(N tokens",  # SGLang
        r"prompt contains (?:at least )?N input tokens",  # vLLM
        r"\(N prompt \+",  # kvfence
        r"\(N in the messages",  # OpenAI
        r"messages resulted in N tokens",
        r"value=N\)",
        r"your request has N input tokens",
        r"request \(N tokens\)",  # llama.cpp
    )
)
_AT_LEAST = re.compile(r"at least", re.IGNORECASE)
_IN_PAGES = re.compile(r"= [0-9]+ pages of " + _NUMBER)


class Said(Struct, frozen=True):
    """What was read out of a refusal's words. ``counted``: the prompt's tokens, where they were counted to the end."""

    message: str
    limit_tokens: int | None = None
    counted: int | None = None


def read_refusal(text: str, own: Sequence[str] = ()) -> Said:
    """Read a refusal; its words are left out where they repeat what was sent."""
    limit = _first(_LIMITS, text)
    counted = None if _AT_LEAST.search(text) else _first(_COUNTS, text)
    repeats = any(marker in text for marker in own)
    message = "(words that repeat the prompt)" if repeats else plain(text.strip(), MESSAGE_CHARS_MAX)
    return Said(message, limit, counted)


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            value = int(re.sub(r"[,_]", "", found[1]))
            pages = _IN_PAGES.search(text) if "pages: " in found[0] else None
            return value * int(pages[1]) if pages else value
    return None
