"""What a run will send, before it sends anything: each phase's share of the budget, and what the whole comes to.

A budget shrinks phases and leaves none out. Read next: ``run.py``, which carries a plan out.
"""

from collections.abc import Sequence

from msgspec import Struct

from kvfence.probe.budget import Budget
from kvfence.probe.exchange import Phase

WEIGHTS: dict[Phase, float] = {
    Phase.CALIBRATE: 0.13,
    Phase.SEED: 0.08,
    Phase.OVERSIZE: 0.35,
    Phase.ABORT: 0.14,
    Phase.PRESSURE: 0.10,
    Phase.PREFIX: 0.10,
    Phase.REPLAY: 0.10,
}
"""Shares of requests. Seeding and overlong prompts are the incident: half of all."""

LEAST: dict[Phase, int] = {
    Phase.CALIBRATE: 22,
    Phase.SEED: 4,
    Phase.OVERSIZE: 12,
    Phase.ABORT: 10,
    Phase.PRESSURE: 4,
    Phase.PREFIX: 6,
    Phase.REPLAY: 6,
}
CALIBRATE_MOST = 56
"""More tells no more: what is left goes to the others."""

ANSWER_TOKENS = 32
PRESSURE_TOKENS = 128
UNKNOWN_CONTEXT = 32_768
"""Where the server names no context, lengths are estimated as if it were this."""

LENGTHS: dict[Phase, float] = {
    Phase.CALIBRATE: 0.45,
    Phase.SEED: 0.65,
    Phase.OVERSIZE: 0.9,
    Phase.ABORT: 0.75,
    Phase.PRESSURE: 0.3,
    Phase.PREFIX: 0.65,
    Phase.REPLAY: 1.0,
}
"""Mean length of a phase's prompts, as a share of the context."""


class Share(Struct, frozen=True):
    """What one phase may send. Units: tokens of prompts and answers together."""

    phase: Phase
    requests: int
    tokens: int


class Plan(Struct, frozen=True):
    """The shares in order, and what they come to. ``context``: what lengths were estimated with."""

    shares: tuple[Share, ...]
    context: int
    context_known: bool
    tokens_in: int
    tokens_out: int
    cost: float | None
    shrunk: str

    @property
    def requests(self) -> int:
        """Give all requests."""
        return sum(share.requests for share in self.shares)

    def of(self, phase: Phase) -> Share:
        """Give one phase's share."""
        return next((share for share in self.shares if share.phase is phase), Share(phase, 0, 0))


def make_plan(budget: Budget, phases: Sequence[Phase], context: int | None) -> Plan:
    """Divide the budget between phases; with fewer tokens than the requests need, prompts are fewer, never left out."""
    length = context or UNKNOWN_CONTEXT
    requests = _divide(budget.requests_max, phases)
    wanted = {phase: count * _tokens_of(phase, length) for phase, count in requests.items()}
    total, allowed = sum(wanted.values()), budget.tokens_by_cost
    scale = min(1.0, allowed / total) if total else 1.0
    if scale < 1.0:
        requests = {phase: max(min(LEAST[phase], count), int(count * scale)) for phase, count in requests.items()}
    shares = tuple(Share(phase, count, max(1, int(wanted[phase] * scale))) for phase, count in requests.items())
    tokens_out = sum(share.requests * _answer_tokens(share.phase) for share in shares)
    tokens_in = max(0, sum(share.tokens for share in shares) - tokens_out)
    shrunk = f"{total:,} tokens would be wanted, {allowed:,} are allowed" if scale < 1.0 else ""
    return Plan(shares, length, context is not None, tokens_in, tokens_out, budget.cost(tokens_in, tokens_out), shrunk)


def _divide(requests: int, phases: Sequence[Phase]) -> dict[Phase, int]:
    """Give each phase its part of the requests: at least a few, calibration at most what helps."""
    least = sum(LEAST[phase] for phase in phases)
    if requests <= least:
        return {phase: max(1, requests * LEAST[phase] // least) for phase in phases}
    weights = sum(WEIGHTS[phase] for phase in phases)
    spare = requests - least
    parts = {phase: LEAST[phase] + int(spare * WEIGHTS[phase] / weights) for phase in phases}
    if Phase.CALIBRATE in parts:
        parts[Phase.CALIBRATE] = min(parts[Phase.CALIBRATE], CALIBRATE_MOST)
    power = Phase.OVERSIZE if Phase.OVERSIZE in parts else phases[-1]
    parts[power] += requests - sum(parts.values())
    return parts


def _answer_tokens(phase: Phase) -> int:
    return PRESSURE_TOKENS if phase is Phase.PRESSURE else ANSWER_TOKENS


def _tokens_of(phase: Phase, context: int) -> int:
    return max(32, int(context * LENGTHS[phase])) + _answer_tokens(phase)
