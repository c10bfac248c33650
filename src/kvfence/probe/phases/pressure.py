"""Many long generations at once: together they need more pages than there are, so that some are preempted or evicted.

What comes back after a preemption must still be its own. A refusal for load is an answer here, and is not asked again.
"""

from kvfence.probe.exchange import Phase
from kvfence.probe.phases.seed import honest_limit
from kvfence.probe.plan import PRESSURE_TOKENS
from kvfence.probe.stage import Canary, Stage

SHARES = (0.25, 0.4, 0.15)


async def run(stage: Stage) -> None:
    """Send batches, twice as wide as what may be open at once."""
    top = honest_limit(stage)
    answer = answer_tokens(stage)
    number = 0
    while True:
        length = max(32, int(top * SHARES[number % len(SHARES)]))
        width = min(2 * stage.budget.concurrency, stage.requests_left)
        while width > 1 and not stage.has_room(width, width * (length + answer)):
            width //= 2
        if width < 1 or not stage.has_room(width, width * (length + answer)):
            return
        tenants = [stage.tenants[index % len(stage.tenants)] for index in range(width)]
        await stage.send_all([_long(stage, tenant, length, number + index) for index, tenant in enumerate(tenants)])
        number += 1


def _long(stage: Stage, tenant: str, length: int, number: int) -> Canary:
    return Canary(
        tenant=tenant,
        phase=Phase.PRESSURE,
        role="loaded",
        group="pressure",
        kind=stage.lines_kind(number // 2),
        num_tokens=length,
        max_tokens=answer_tokens(stage),
        number=number,
    )


def answer_tokens(stage: Stage) -> int:
    """Give how long these generations are."""
    return max(16, min(PRESSURE_TOKENS, honest_limit(stage) // 3))
