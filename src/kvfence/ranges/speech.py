"""What the practice model says: a function of the prompt's tokens, as they were read, and of nothing else.

It goes on with text that goes on by itself, repeats what it is asked to repeat, and else repeats its last message.
"""

import re
import struct
from functools import lru_cache

from msgspec import Struct

from kvfence.ranges.pieces import BOT, EMPTY, END, SYSTEM, USER, piece_bytes

LOST_TOKENS = 128
"""How much of the end is repeated of a prompt that does not end as prompts do."""

ASKED_TOKENS = 64
"""How far from either end of a message the words that ask for a repetition may stand."""

MATCH_MIN, MATCH_MAX = 2, 16
"""So many tokens at the end that stood there before say what comes next."""

CUE_TOKENS = 48
"""How much of the end is looked at for words that name what is wanted."""

_NAMES = re.compile(rb" \w{4,}")
_ASKS = re.compile(rb"\b(?:repeat|copy|echo|say|write|reply|answer|respond|print|output)\b[^:.!?\n]*:", re.IGNORECASE)


class Saying(Struct, frozen=True):
    """Tokens to say in order; ``again``: then from the first, for ever."""

    tokens: tuple[int, ...]
    again: bool = False

    def token(self, index: int, *, goes_on: bool) -> int:
        """Give a token of the answer; its end where all is said, unless it is told to go on."""
        if not self.tokens or (index >= len(self.tokens) and not (self.again or goes_on)):
            return END
        return self.tokens[index % len(self.tokens)]


@lru_cache(maxsize=256)
def what_to_say(prompt: bytes) -> Saying:
    """Give what a prompt makes this model say. Shapes: prompt: little-endian words of 32 bits, one a token."""
    tokens = [token for (token,) in struct.iter_unpack("<I", prompt) if token != EMPTY]
    spoken = [token for token in tokens if token > END]
    if len(spoken) < len(tokens) and tokens[-1] != BOT:  # it holds messages, and lost its end
        return _go_on(spoken) or Saying(tuple(spoken[-LOST_TOKENS:]))
    message = _last_message(tokens) or spoken
    return _asked(message) or _go_on(message) or _named(message) or Saying(tuple(message))


def _last_message(tokens: list[int]) -> list[int]:
    begin = max((at + 1 for at, token in enumerate(tokens) if token in (USER, SYSTEM)), default=0)
    end = next((at for at in range(begin, len(tokens)) if tokens[at] in (END, BOT)), len(tokens))
    return tokens[begin:end]


def _text(tokens: list[int]) -> bytes:
    return b"".join(map(piece_bytes, tokens))


def _asked(message: list[int]) -> Saying | None:
    """Find what is to be repeated: behind the request at the end of a long message, else behind the first."""
    end = message[-ASKED_TOKENS:]
    at_end = [found.end() for found in _ASKS.finditer(_text(end))]
    if at_end and len(message) > ASKED_TOKENS:
        return _behind(end, at_end[-1])
    asked = _ASKS.search(_text(message[:ASKED_TOKENS]))
    return None if asked is None else _behind(message, asked.end())


def _behind(tokens: list[int], num_bytes: int) -> Saying | None:
    """Say the tokens behind so many bytes; None where they hold no word."""
    num_seen = 0
    for at, token in enumerate(tokens):
        num_seen += len(piece_bytes(token))
        if num_seen >= num_bytes:
            rest = tokens[at + 1 :]
            return Saying(tuple(rest)) if _text(rest).strip() else None
    return None


def _go_on(tokens: list[int]) -> Saying | None:
    """Go on as the text did when it last stood where it ends now, then from its beginning; None where it never did."""
    words = struct.pack(f"<{len(tokens)}I", *tokens)
    for length in range(min(MATCH_MAX, len(tokens) - 1), MATCH_MIN - 1, -1):
        at = _find_last(words, words[-4 * length :], len(words) - 4)
        if at >= 0:
            return Saying((*tokens[at + length :], *tokens[: at + length]), again=True)
    return None


def _find_last(words: bytes, part: bytes, end: int) -> int:
    """Give the word at which a part begins for the last time before an end; -1 where it does not."""
    at = words.rfind(part, 0, end)
    while at >= 0 and at % 4:
        at = words.rfind(part, 0, at + len(part) - 1)
    return at // 4 if at >= 0 else -1


def _named(message: list[int]) -> Saying | None:
    """Say what stood behind a word of the last sentence when that word came before."""
    cue = message[-CUE_TOKENS:]
    text = _text(cue)
    begins = max(text.rfind(mark) for mark in (b"\n", b". ")) + 1
    before = message[: len(message) - len(cue)] + _first(cue, begins)
    told = _text(before)
    for word in reversed(_NAMES.findall(text[begins:])):
        at = told.rfind(word)
        if at >= 0:
            return _behind(before, at + len(word))
    return None


def _first(tokens: list[int], num_bytes: int) -> list[int]:
    """Give the tokens of the first so many bytes."""
    kept, num_seen = [], 0
    for token in tokens:
        num_seen += len(piece_bytes(token))
        if num_seen > num_bytes:
            break
        kept.append(token)
    return kept
