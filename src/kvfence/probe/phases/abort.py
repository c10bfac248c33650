"""Clients that leave: before the first token, in mid-stream, in bursts; then somebody else uses what they left behind.

A write that is still on its way when its request is given up lands in pages that the next request holds.
"""

from collections.abc import Sequence

from kvfence.probe.client import Patience
from kvfence.probe.exchange import Phase
from kvfence.probe.phases.seed import honest_limit
from kvfence.probe.plan import ANSWER_TOKENS
from kvfence.probe.stage import Canary, Stage

LEAVE_TOKENS = 64
SHARES = (0.8, 0.5, 0.95, 0.65)
BURST = 3
LEAVE_S_MIN = 0.004
WHEN = (2.0, 1.1, 4.0, 0.5)
"""Times what prefill is expected to take: within it, and while pages are on their way."""


async def run(stage: Stage) -> None:
    """Several leave together, most before their first token, some in mid-stream; then others come at once."""
    number = 0
    top = honest_limit(stage)
    while stage.has_room(BURST + 1, (BURST + 1) * top):
        asker = stage.tenants[number % len(stage.tenants)]
        length = max(32, int(top * SHARES[number % len(SHARES)]) - LEAVE_TOKENS)
        leavers = stage.others(asker)[:BURST]
        await stage.send_all([_leaver(stage, tenant, length, number + at) for at, tenant in enumerate(leavers)])
        left = max(1, min(2, stage.requests_left))
        await stage.send_all(_reuse(stage, asker, length, number)[:left])
        number += 1


def _leaver(stage: Stage, tenant: str, length: int, number: int) -> Canary:
    midway = number % 6 == 5
    return Canary(
        tenant=tenant,
        phase=Phase.ABORT,
        role="left",
        group=f"abort-{number}",
        num_tokens=length,
        max_tokens=LEAVE_TOKENS,
        number=number,
        leave=2 if midway else 0,
        patience=Patience() if midway else Patience(leave_s=_leave_s(stage, length, number)),
    )


def _leave_s(stage: Stage, length: int, number: int) -> float:
    calibration = stage.calibration
    prefill_s = length / calibration.tokens_per_s if calibration.tokens_per_s else 0.1
    return max(LEAVE_S_MIN, WHEN[number % len(WHEN)] * ((calibration.overhead_s or 0.0) + prefill_s))


def _reuse(stage: Stage, asker: str, length: int, number: int) -> Sequence[Canary]:
    return [
        Canary(
            tenant=asker,
            phase=Phase.ABORT,
            role="reuse",
            kind=stage.lines_kind(index),
            group=f"abort-{number}",
            num_tokens=length,
            max_tokens=ANSWER_TOKENS,
            number=2 * number + index,
        )
        for index in range(2)
    ]
