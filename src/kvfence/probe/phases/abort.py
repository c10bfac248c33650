"""Clients that leave: before the first token, in mid-stream, in bursts; then somebody else uses what they left behind.

A write that is still on its way when its request is given up lands in pages that the next request holds. So whoever
comes next comes at once, of the same length, and some that leave alone: most allocators give the next the same pages.
"""

import math

from kvfence.probe.client import Patience
from kvfence.probe.exchange import Phase
from kvfence.probe.phases.seed import honest_limit
from kvfence.probe.plan import ANSWER_TOKENS
from kvfence.probe.stage import Canary, Stage

LEAVE_TOKENS = 64
SHARES = (0.8, 0.5, 0.95, 0.65)
WIDTHS = (1, 2, 3)
"""How many leave together: alone its pages are the next one's, in bursts there are writes on their way all the time."""

LEAVE_S_MIN = 0.004
SOONEST, LATEST = 0.1, 2.0
"""Times what prefill is expected to take: within it, and while pages are on their way; later behind others.

Early as often as late: what is expected holds the transfer, and where that is slow prefill is over long before.
"""

MIDWAY_EVERY = 6


async def run(stage: Stage) -> None:
    """Some leave, most before their first token, some in mid-stream; after each another tenant comes at once."""
    top = honest_limit(stage)
    number = 0
    while stage.has_room(2, 2 * top):
        asker = stage.tenants[number % len(stage.tenants)]
        length = max(32, int(top * SHARES[number % len(SHARES)]) - LEAVE_TOKENS)
        leavers = stage.others(asker)[: min(WIDTHS[number % len(WIDTHS)], stage.requests_left // 2)]
        pairs = [
            (_leaver(stage, tenant, length, number, place), _reuse(stage, asker, length, number, place))
            for place, tenant in enumerate(leavers)
            if stage.has_room(2 * (place + 1), 2 * (place + 1) * length)
        ]
        await stage.send_in_turn(pairs)
        number += 1


def _leaver(stage: Stage, tenant: str, length: int, number: int, place: int) -> Canary:
    midway = (number + place) % MIDWAY_EVERY == MIDWAY_EVERY - 1
    return Canary(
        tenant=tenant,
        phase=Phase.ABORT,
        role="left",
        group=f"abort-{number}",
        num_tokens=length,
        max_tokens=LEAVE_TOKENS,
        number=number + place,
        leave=2 if midway else 0,
        patience=Patience() if midway else Patience(leave_s=_leave_s(stage, length, place)),
    )


def _leave_s(stage: Stage, length: int, place: int) -> float:
    """Draw when it leaves; ``place``: how many prompts may be computed before its own."""
    calibration = stage.calibration
    prefill_s = length / calibration.tokens_per_s if calibration.tokens_per_s else 0.1
    due_s = (calibration.overhead_s or 0.0) + prefill_s
    times = SOONEST * math.exp(stage.rng.uniform(0.0, math.log((LATEST + place) / SOONEST)))
    return max(LEAVE_S_MIN, times * due_s)


def _reuse(stage: Stage, asker: str, length: int, number: int, place: int) -> Canary:
    return Canary(
        tenant=asker,
        phase=Phase.ABORT,
        role="reuse",
        kind=stage.lines_kind(number + place),
        group=f"abort-{number}",
        num_tokens=length,
        max_tokens=ANSWER_TOKENS,
        number=2 * number + place,
    )
