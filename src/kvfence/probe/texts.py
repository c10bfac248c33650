"""What canaries say: prompts of a wished length whose answer repeats a marker, and the ruler that measures them.

Every prompt begins with a number of its own, so that no cache knows its beginning. A *repetitive* one is a line over
and over, which any model goes on with; a *natural* one is sentences dense with markers. The ruler learns from what the
server counts (usage, or the words of a refusal) and then hits a length within a token.

Where an answer is read from matters as much as where stale text lands: a model that is asked to repeat reads the first
lines; an *onward* prompt ends within a line, and a model goes on from the last ones.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, count
from statistics import median

from msgspec import Struct

from kvfence.probe.words import CLERKS, TOPICS

REPETITIVE, ONWARD, NATURAL, PLAIN = "repetitive", "onward", "natural", "plain"
LINES = frozenset({REPETITIVE, ONWARD})
FILLER = " so"
NUMBER_CHARS = 6
TOKENS_PER_CHAR = 0.35
"""Before anything was measured."""

LIKE = 2.0
"""A count of so many times the tokens a character that this server counted before, or as many times fewer, is none."""

FAR = 4
"""A unit learned from so many of them says nothing sure of a prompt this many times as far from a counted one."""

FILLERS_APART, KEPT_COUNTS = 4, 64

_LEAD = {REPETITIVE: "Repeat these lines:", ONWARD: "A list", NATURAL: "Read these notes.", PLAIN: "Read these notes."}
_CUE = {REPETITIVE: "", ONWARD: "", NATURAL: "The client's name, written again and again: ", PLAIN: "In short:"}


class Draft(Struct, frozen=True):
    """A prompt and how it is made: ``units`` lines or sentences, ``fillers`` words in their midst.

    ``expected``: tokens by the ruler; ``measured``: the ruler has seen this text's unit counted, in prompts not too
    unlike. ``size``: what the ruler counts, lines, or characters of sentences; ``unit_chars``: in one of those.
    """

    kind: str
    key: str
    prompt: str
    units: int
    fillers: int
    expected: int
    measured: bool
    size: int = 1
    unit_chars: int = 1


class Wish(Struct, frozen=True):
    """What a prompt is to be. ``nonce``: the number it begins with; ``shape``: units and fillers, whatever their sum.

    Units: num_tokens of the whole prompt.
    """

    kind: str
    markers: Sequence[str]
    num_tokens: int
    nonce: int
    tail: str = ""
    shape: tuple[int, int] | None = None


class Ruler:
    """Lengths in the server's tokens, learned as it counts: base + units * unit + fillers * filler.

    Units are lines, all alike, or characters of sentences, which differ. A count that contradicts the others teaches
    nothing: a server that leaks may count what it read and not what was sent.
    """

    def __init__(self) -> None:
        self.filler = 1.0
        self._filler_span = FILLERS_APART
        self._base: dict[str, float] = {}
        self._unit: dict[str, float] = {}
        self._span: dict[str, int] = {}
        self._lines: set[str] = set()
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._total = (0, 0, 0)
        self._rates: list[float] = []

    @property
    def tokens_per_word(self) -> float | None:
        """Give tokens for a word of our prompts; None before anything was counted."""
        words, _, tokens = self._total
        return tokens / words if words else None

    def draft(self, wish: Wish) -> Draft:
        """Compose a prompt of about the wished length; exactly that where its lines were counted before."""
        key = f"{wish.kind}/{wish.markers[0] if wish.markers else ''}{wish.tail}"
        units, fillers = wish.shape or self._shape(wish, key)
        size = size_of(wish, units)
        expected = max(1, round(self._predict(wish, key, size, fillers)))
        measured = key in self._lines or (key in self._seen and self._is_near(key, size))
        text = compose(wish, units, fillers)
        return Draft(wish.kind, key, text, units, fillers, expected, measured, size, _unit_chars(wish))

    def _is_near(self, key: str, size: int) -> bool:
        return abs(size - self._seen[key][0]) <= FAR * self._span.get(key, 0)

    def _shape(self, wish: Wish, key: str) -> tuple[int, int]:
        """Give units and fillers: as many units as fit, the rest in fillers."""
        room = (wish.num_tokens - self._predict(wish, key, 0, 0)) / self._unit_of(wish, key) + 1e-6
        if wish.kind in LINES:
            units = max(1, math.floor(room))
        else:
            lengths = accumulate(len(unit_of(wish, index)) for index in count())
            units = max(1, next(index for index, length in enumerate(lengths) if length > room))
        left = wish.num_tokens - self._predict(wish, key, size_of(wish, units), 0)
        return units, max(0, round(left / self.filler))

    def _predict(self, wish: Wish, key: str, size: int, fillers: int) -> float:
        unit, seen = self._unit_of(wish, key), self._seen.get(key)
        if seen is not None:
            return seen[2] + (size - seen[0]) * unit + (fillers - seen[1]) * self.filler
        return self._guess_base(wish) + size * unit + fillers * self.filler

    def _guess_base(self, wish: Wish) -> float:
        known = self._base.get(wish.kind)
        if known is not None:
            return known
        cue = self._per_char * len(_CUE[wish.kind] + wish.tail)
        return self._base.get(REPETITIVE, 6.0) + cue

    def _unit_of(self, wish: Wish, key: str) -> float:
        """Give the tokens of one line, or of one character of sentences: counted, or guessed."""
        return self._unit.get(key) or self._per_char * _unit_chars(wish)

    @property
    def _per_char(self) -> float:
        _, chars, tokens = self._total
        return tokens / chars if chars else TOKENS_PER_CHAR

    def learn(self, draft: Draft, num_tokens: int) -> None:
        """Take what the server counted for a draft, unless it contradicts what it counted before."""
        if not self._is_likely(draft, num_tokens):
            return
        words, chars, tokens = self._total
        self._total = (words + len(draft.prompt.split()), chars + len(draft.prompt), tokens + num_tokens)
        seen = self._seen.get(draft.key)
        if seen is not None and draft.size != seen[0]:
            moved = num_tokens - seen[2] - (draft.fillers - seen[1]) * self.filler
            self._set_unit(draft, moved, draft.size - seen[0])
            if draft.kind not in self._base and draft.key in self._unit:
                left = num_tokens - draft.size * self._unit[draft.key] - draft.fillers * self.filler
                self._base[draft.kind] = left
                self._rates = self._rates or [self._unit[draft.key] / draft.unit_chars]
        elif seen is not None and abs(draft.fillers - seen[1]) >= self._filler_span:
            self._filler_span = abs(draft.fillers - seen[1])
            self.filler = max(0.5, (num_tokens - seen[2]) / (draft.fillers - seen[1]))
        elif seen is None and REPETITIVE in self._base:
            base = self._base.get(draft.kind, self._base[REPETITIVE])
            self._set_unit(draft, num_tokens - base - draft.fillers * self.filler, draft.size)
        if seen is None or draft.size >= seen[0]:
            self._seen[draft.key] = (draft.size, draft.fillers, num_tokens)

    def _is_likely(self, draft: Draft, num_tokens: int) -> bool:
        """Are there as many tokens to a character of this prompt, the template aside, as there mostly were?"""
        if 2 * num_tokens < len(draft.prompt.split()):
            return False
        if not self._rates:
            return True
        rate = max(0.0, num_tokens - self._base.get(REPETITIVE, 0.0)) / len(draft.prompt)
        usual = median(self._rates)
        if not usual / LIKE <= rate <= usual * LIKE:
            return False
        self._rates = [*self._rates, rate][-KEPT_COUNTS:]
        return True

    def _set_unit(self, draft: Draft, tokens: float, span: int) -> None:
        """Learn a unit from so many of them; from fewer than before it would be known less well."""
        usual = median(self._rates) * draft.unit_chars if self._rates else None
        unit = tokens / span
        likely = unit > 0 if usual is None else usual / LIKE <= unit <= usual * LIKE
        if not likely or abs(span) < self._span.get(draft.key, 0):
            return
        self._span[draft.key] = abs(span)
        near = round(unit)
        whole = draft.kind in LINES and near and abs(unit - near) * draft.size <= 2
        self._unit[draft.key] = float(near) if whole else unit
        if whole and draft.key in self._seen:
            self._lines.add(draft.key)


def compose(wish: Wish, units: int, fillers: int) -> str:
    """Write the prompt; fillers stand in its middle, so that it begins and ends with what is to be repeated."""
    body = [unit_of(wish, index) for index in range(units)]
    if fillers:
        body.insert(units // 2, f"{FILLER.strip()}{FILLER * (fillers - 1)}\n")
    end = f"- {wish.markers[0].split()[0]}" if wish.kind == ONWARD else _CUE[wish.kind] + wish.tail
    return f"#{wish.nonce:0{NUMBER_CHARS}} {_LEAD[wish.kind]}\n{''.join(body)}{end}"


def number_of(prompt: str) -> str:
    """Give the number that a prompt of ours begins with."""
    return prompt[1 : 1 + NUMBER_CHARS]


def renumbered(prompt: str, nonce: int) -> str:
    """Give the same prompt with another number at its beginning: to every cache of prefixes it is a new one."""
    return f"#{nonce:0{NUMBER_CHARS}}{prompt[1 + NUMBER_CHARS :]}"


def _unit_chars(wish: Wish) -> int:
    return len(unit_of(wish, 0)) if wish.kind in LINES else 1


def size_of(wish: Wish, units: int) -> int:
    """Give how much so many units are, as the ruler counts them."""
    return units if wish.kind in LINES else sum(len(unit_of(wish, index)) for index in range(units))


def unit_of(wish: Wish, index: int) -> str:
    """Give one line or sentence."""
    if wish.kind in LINES:
        return f"- {wish.markers[0]}\n"
    clerk, topic = CLERKS[index % len(CLERKS)], TOPICS[index % len(TOPICS)]
    if wish.kind == PLAIN:
        return f"{clerk} wrote a letter about {topic} on day {index}. "
    return f"{clerk} wrote to client {wish.markers[index % len(wish.markers)]} about {topic}. "
