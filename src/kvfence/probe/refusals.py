"""What a server's words about a refusal say: the limit it names, the length it counted, and the words, cut short.

Not for: whether a refusal was due (``detectors/``).
"""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from kvfence.evidence.visible import plain

MESSAGE_CHARS_MAX = 300
RUN_CHARS = 16
"""So many characters of a prompt in a row are a piece of it, and no chance."""
_NUMBER = r"([0-9](?:[0-9,_]{0,13}[0-9])?)(?![,_]*[0-9])"

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


def read_refusal(text: str, own: Sequence[str] = (), prompt: str = "", mask: Callable[[str], str] = str) -> Said:
    """Read a refusal; its words are left out where they repeat what was sent. ``mask``: takes secrets out first."""
    limit = _first(_LIMITS, text)
    counted = None if _AT_LEAST.search(text) else _first(_COUNTS, text)
    shown = mask(text).strip()
    repeats = any(marker in text for marker in own) or _holds_run(shown[:MESSAGE_CHARS_MAX], prompt)
    message = "(words that repeat the prompt)" if repeats else plain(shown, MESSAGE_CHARS_MAX)
    return Said(message, limit, counted)


def _holds_run(text: str, prompt: str) -> bool:
    """Does a short text hold a run of a prompt? A run holds half of one that begins at a multiple of that half."""
    half = RUN_CHARS // 2
    for at in range(0, len(text) - half + 1, half):
        if text[at : at + half] in prompt:
            runs = (text[begin : begin + RUN_CHARS] for begin in range(max(0, at - half), at + 1))
            if any(len(run) == RUN_CHARS and run in prompt for run in runs):
                return True
    return False


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            value = _value(found)
            pages = _IN_PAGES.search(text) if "pages: " in found[0] else None
            return value * _value(pages) if pages else value
    return None


def _value(found: re.Match[str]) -> int:
    return int(re.sub(r"[,_]", "", found[1]))
