"""The search for the longest prompt that is answered: what the server names, what its refusals say, then bisection."""

from msgspec import Struct
from msgspec.structs import replace

from kvfence.probe.client import Patience
from kvfence.probe.exchange import Exchange, Phase, Trouble
from kvfence.probe.stage import HURRIED_S, PATIENCE_S, Canary, Stage, is_refused, is_unanswered

FIRST_GUESS = 2048
GROWTH = 4
CEILING = 4_000_000
WAIT_S = 30.0
"""A prompt near the limit that is not answered in this time and four times its due counts as refused."""

LEFT_FOR_MORE = 7
"""Requests that stay for prefill's rate and for the controls; the first try is made all the same."""

SLOW_S = 5.0
"""Once a refusal has taken so long, the others are not waited for: they count as refused all the same."""

SLOWEST_RATE = 500.0
"""Tokens a second, where none was measured."""

ANSWER_TOKENS = 8
"""Each try asks for so few: a limit on prompt and answer together then lies this much above the one on prompts."""


class Found(Struct, frozen=True):
    """What the search ended with; ``limit`` where low and high meet. ``unanswered``: see ``Calibration``."""

    low: int | None
    high: int | None
    named: int | None = None
    unanswered: int | None = None

    @property
    def limit(self) -> int | None:
        """Give the longest prompt that is answered, where it is known to a token."""
        return self.low if self.low is not None and self.high is not None and self.high - self.low <= 1 else None

    @property
    def is_near_enough(self) -> bool:
        """Is each further try dear, because it would not be answered, and little left to learn?"""
        return self.unanswered is not None and self.high is not None and self.high - (self.low or 0) <= self.high // 20


async def find_limit(stage: Stage, advertised: int | None) -> Found:
    """Search, as long as the phase's share lasts; a few of its requests are left for prefill's rate."""
    found = Found(None, None)
    guess = advertised + 1 if advertised else FIRST_GUESS
    tried: set[int] = set()
    slow = False
    while guess not in tried and stage.has_room(LEFT_FOR_MORE if tried else 1, guess) and len(tried) < 30:
        tried.add(guess)
        heard = await _try(stage, guess, HURRIED_S if slow else WAIT_S)
        if heard.trouble is Trouble.LIMITED:
            tried.discard(guess)  # nothing was said of the prompt
            continue
        slow = slow or (is_refused(heard) and heard.ended_s - heard.sent_s > SLOW_S)
        found = _narrow(found, guess, heard)
        if found.limit is not None or found.is_near_enough:
            break
        guess = _next_guess(found, tried, advertised)
    return found


def _next_guess(found: Found, tried: set[int], advertised: int | None) -> int:
    low, high = found.low or 0, found.high
    if high is None:
        top = advertised if advertised and low < advertised else CEILING
        return min(low * GROWTH, top)
    if found.named is not None and found.unanswered is None:
        together = found.named - ANSWER_TOKENS
        for near in (found.named, found.named - 1, together, together + 1, found.named + 1):
            if low < near < high and near not in tried:
                return near
    return (low + high) // 2


def _narrow(found: Found, guess: int, heard: Exchange) -> Found:
    """Take one answer; the server's own count of the prompt goes before ours."""
    num_tokens = heard.prompt_tokens or guess
    named = heard.limit_tokens or found.named
    if is_refused(heard):
        unanswered = min(found.unanswered or guess, guess) if is_unanswered(heard) else found.unanswered
        return replace(found, high=min(found.high or guess, guess), named=named, unanswered=unanswered)
    low = max(found.low or 0, num_tokens)
    high = found.high if found.high is None or found.high > low else low + 1
    return replace(found, low=low, high=high, named=named)


def patience_beyond(stage: Stage, num_tokens: int, wait_s: float) -> Patience:
    """Give how long a prompt is waited for that may never be answered: so many seconds and four times its due."""
    rate = stage.calibration.tokens_per_s or SLOWEST_RATE
    return Patience(min(PATIENCE_S, wait_s + 4 * num_tokens / rate))


async def _try(stage: Stage, num_tokens: int, wait_s: float) -> Exchange:
    return await stage.send(
        Canary(
            tenant=stage.tenants[0],
            phase=Phase.CALIBRATE,
            role="bisect",
            group="bisect",
            num_tokens=num_tokens,
            max_tokens=ANSWER_TOKENS,
            patience=patience_beyond(stage, num_tokens, wait_s),
        )
    )
