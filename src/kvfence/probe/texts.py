"""What canaries say: prompts of a wished length whose answer repeats a marker, and the ruler that measures them.

Every prompt begins with a number of its own, so that no cache knows its beginning. A *repetitive* one is a line over
and over, which any model goes on with; a *natural* one is sentences dense with markers. The ruler learns from what the
server counts (usage, or the words of a refusal) and then hits a length within a token.

Where an answer is read from matters as much as where stale text lands: a model that is asked to repeat reads the first
lines; an *onward* prompt ends within a line, and a model goes on from the last ones.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from kvfence.probe.words import CLERKS, TOPICS

REPETITIVE, ONWARD, NATURAL, PLAIN = "repetitive", "onward", "natural", "plain"
LINES = frozenset({REPETITIVE, ONWARD})
FILLER = " so"
TOKENS_PER_CHAR = 0.35
"""Before anything was measured."""

_LEAD = {REPETITIVE: "Repeat these lines:", ONWARD: "A list", NATURAL: "Read these notes.", PLAIN: "Read these notes."}
_CUE = {REPETITIVE: "", ONWARD: "", NATURAL: "The client's name, written again and again: ", PLAIN: "In short:"}


class Draft(Struct, frozen=True):
    """A prompt and how it is made: ``units`` lines or sentences, ``fillers`` words before them.

    ``expected``: tokens by the ruler; ``measured``: the ruler has seen this text's unit counted.
    """

    kind: str
    key: str
    prompt: str
    units: int
    fillers: int
    expected: int
    measured: bool


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
    """Lengths in the server's tokens, learned as it counts: base + units * unit + fillers * filler."""

    def __init__(self) -> None:
        self.filler = 1.0
        self._base: dict[str, float] = {}
        self._unit: dict[str, float] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._total = (0, 0, 0)

    @property
    def tokens_per_word(self) -> float | None:
        """Give tokens for a word of our prompts; None before anything was counted."""
        words, _, tokens = self._total
        return tokens / words if words else None

    def draft(self, wish: Wish) -> Draft:
        """Compose a prompt of about the wished length; exactly that where its unit was counted before."""
        key = f"{wish.kind}/{wish.markers[0] if wish.markers else ''}{wish.tail}"
        unit = self._unit.get(key) or self._guess_unit(wish)
        units, fillers = wish.shape or self._shape(wish, key, unit)
        expected = self._predict(wish, key, units, fillers)
        text = compose(wish, units, fillers)
        return Draft(wish.kind, key, text, units, fillers, max(1, round(expected)), key in self._seen)

    def _shape(self, wish: Wish, key: str, unit: float) -> tuple[int, int]:
        """Give units and fillers: as many units as fit, the rest in fillers."""
        units = max(1, math.floor((wish.num_tokens - self._predict(wish, key, 0, 0)) / unit + 1e-6))
        left = wish.num_tokens - self._predict(wish, key, units, 0)
        return units, max(0, round(left / self.filler))

    def _predict(self, wish: Wish, key: str, units: int, fillers: int) -> float:
        unit = self._unit.get(key) or self._guess_unit(wish)
        seen = self._seen.get(key)
        if seen is not None:
            return seen[2] + (units - seen[0]) * unit + (fillers - seen[1]) * self.filler
        return self._guess_base(wish) + units * unit + fillers * self.filler

    def _guess_base(self, wish: Wish) -> float:
        known = self._base.get(wish.kind)
        if known is not None:
            return known
        cue = self._per_char * len(_CUE[wish.kind] + wish.tail)
        return self._base.get(REPETITIVE, 6.0) + cue

    def _guess_unit(self, wish: Wish) -> float:
        return self._per_char * sum(len(unit_of(wish, index)) for index in range(12)) / 12

    @property
    def _per_char(self) -> float:
        _, chars, tokens = self._total
        return tokens / chars if chars else TOKENS_PER_CHAR

    def learn(self, draft: Draft, num_tokens: int) -> None:
        """Take what the server counted for a draft."""
        words, chars, tokens = self._total
        self._total = (words + len(draft.prompt.split()), chars + len(draft.prompt), tokens + num_tokens)
        seen = self._seen.get(draft.key)
        if seen is not None and draft.units != seen[0]:
            moved = num_tokens - seen[2] - (draft.fillers - seen[1]) * self.filler
            self._set_unit(draft, moved / (draft.units - seen[0]))
            if draft.kind not in self._base:
                left = num_tokens - draft.units * self._unit[draft.key] - draft.fillers * self.filler
                self._base[draft.kind] = left
        elif seen is not None and draft.fillers != seen[1]:
            self.filler = max(0.5, (num_tokens - seen[2]) / (draft.fillers - seen[1]))
        elif seen is None and draft.kind in self._base:
            left = num_tokens - self._base[draft.kind] - draft.fillers * self.filler
            self._set_unit(draft, left / draft.units)
        if seen is None or draft.units >= seen[0]:
            self._seen[draft.key] = (draft.units, draft.fillers, num_tokens)

    def _set_unit(self, draft: Draft, tokens: float) -> None:
        near = round(tokens)
        whole = draft.kind in LINES and abs(tokens - near) * draft.units <= 2
        self._unit[draft.key] = max(1.0, float(near) if whole else tokens)


def compose(wish: Wish, units: int, fillers: int) -> str:
    """Write the prompt; fillers stand in its middle, so that it begins and ends with what is to be repeated."""
    body = [unit_of(wish, index) for index in range(units)]
    if fillers:
        body.insert(units // 2, f"{FILLER.strip()}{FILLER * (fillers - 1)}\n")
    end = f"- {wish.markers[0].split()[0]}" if wish.kind == ONWARD else _CUE[wish.kind] + wish.tail
    return f"#{wish.nonce:06} {_LEAD[wish.kind]}\n{''.join(body)}{end}"


def unit_of(wish: Wish, index: int) -> str:
    """Give one line or sentence."""
    if wish.kind in LINES:
        return f"- {wish.markers[0]}\n"
    clerk, topic = CLERKS[index % len(CLERKS)], TOPICS[index % len(TOPICS)]
    if wish.kind == PLAIN:
        return f"{clerk} wrote a letter about {topic} on day {index}. "
    return f"{clerk} wrote to client {wish.markers[index % len(wish.markers)]} about {topic}. "
