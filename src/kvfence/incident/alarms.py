"""What can be told of an answer from outside: foreign markers, amnesia of its own prompt, an impossible speed.

Pure functions over answers; nothing here sees the server. Not for: sending (``detector.py``).
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

MARGIN = 3.0
"""An answer is impossibly fast only if it needed this many times the best rate that the server has shown."""

FUZZY_LETTERS_MIN = 5
"""Shorter markers must be met exactly: too much else resembles them."""

FUZZY_MIN = 80.0
"""Percent of likeness at which a word counts as a garbled marker."""

Likeness = Callable[[str, str], float]


class Judged(Struct, frozen=True):
    """The alarms of one answer. ``exact``, ``fuzzy``: (tenant, marker) of every foreign marker found."""

    name: str
    status: bool = False
    exact: tuple[tuple[str, str], ...] = ()
    fuzzy: tuple[tuple[str, str], ...] = ()
    amnesia: bool = False
    too_fast: bool = False

    @property
    def text(self) -> bool:
        """Is foreign text readable?"""
        return bool(self.exact or self.fuzzy)

    @property
    def marker(self) -> bool:
        """Does any alarm that looks at the answer go off?"""
        return self.text or self.amnesia or self.too_fast


def words_of(text: str) -> list[str]:
    """Split text into words of letters."""
    return "".join(letter if letter.isalpha() else " " for letter in text).split()


def find_exact(text: str, planted: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Give every planted marker that stands in the text as a word, whatever its case."""
    words = {word.lower() for word in words_of(text)}
    return tuple(
        (tenant, marker) for tenant, markers in planted.items() for marker in markers if marker.lower() in words
    )


def find_fuzzy(
    text: str, planted: Mapping[str, Sequence[str]], likeness: Likeness, own: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Give planted markers that a word of the text resembles; words that resemble the asker's own do not count.

    ``likeness``: 0 to 100.
    """
    words = [word.lower() for word in words_of(text) if len(word) >= FUZZY_LETTERS_MIN]
    foreign = [word for word in words if all(likeness(word, mine.lower()) < FUZZY_MIN for mine in own)]
    return tuple(
        (tenant, marker)
        for tenant, markers in planted.items()
        for marker in markers
        if len(marker) >= FUZZY_LETTERS_MIN and any(likeness(word, marker.lower()) >= FUZZY_MIN for word in foreign)
    )


def has_amnesia(text: str, own: Sequence[str]) -> bool:
    """Does the answer show no trace of its own prompt?"""
    words = {word.lower() for word in words_of(text)}
    return bool(own) and not any(mine.lower() in words for mine in own)


def best_rate(times: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Give the highest prefill rate shown, in tokens a second.

    Shapes:
        times: groups of requests sent together, each (prompt tokens, seconds to the first token).
    """
    best = 0.0
    for group in times:
        done = 0
        for num_tokens, ttft_s in sorted(group, key=lambda pair: pair[1]):
            done += num_tokens
            best = max(best, done / ttft_s if ttft_s > 0 else 0.0)
    return best


def too_fast(group: Sequence[tuple[str, int, float]], rate: float) -> set[str]:
    """Name the answers of a group, sent together, that came before their prompts can have been computed.

    Shapes:
        group: (name, prompt tokens, seconds to the first token). The first j answers took j prompts' work.
    """
    found: set[str] = set()
    done = 0
    for name, num_tokens, ttft_s in sorted(group, key=lambda each: each[2]):
        done += num_tokens
        if rate > 0 and ttft_s * MARGIN < done / rate:
            found.add(name)
    return found
