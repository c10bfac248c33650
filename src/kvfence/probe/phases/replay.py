"""One greedy prompt again and again: alone and under load, and after different tenants' prompts.

Under load it is the same to the letter; after others' prompts it begins with another number each time, so that no cache
answers in its place. On a sound server nobody else's prompt decides what it answers. Whose prompt comes before is drawn
by lot, as often one as the other, so that a drift of the server over time is not taken for it.
"""

from msgspec.structs import replace

from kvfence.probe.exchange import Ask, Phase
from kvfence.probe.phases.seed import honest_limit
from kvfence.probe.plan import ANSWER_TOKENS
from kvfence.probe.stage import Canary, Stage
from kvfence.probe.texts import Draft

LOAD = 3
PAIRS = 3
LOAD_GROUP = 3 + LOAD
LOT_GROUP = 4 * PAIRS
SHARES = (0.9, 0.5)


async def run(stage: Stage) -> None:
    """By turns: under load, and after one of two tenants."""
    number = 0
    top = honest_limit(stage)
    while True:
        length = max(32, int(top * SHARES[number // 2 % len(SHARES)]) - ANSWER_TOKENS)
        if number % 2 == 0 and stage.has_room(LOAD_GROUP, LOAD_GROUP * length):
            await _under_load(stage, length, number)
        elif number % 2 == 1 and stage.has_room(LOT_GROUP, LOT_GROUP * length):
            await _after_others(stage, _in_question(stage, length), number)
        elif number % 2 == 1 or not stage.has_room(LOT_GROUP, LOT_GROUP * length):
            return
        number += 1


def _in_question(stage: Stage, length: int) -> int:
    """Give a length at which prompts were seen to be lost, where there is one."""
    return length if stage.lost_tokens is None else stage.lost_tokens


async def _under_load(stage: Stage, length: int, number: int) -> None:
    tenant = stage.tenants[number // 2 % len(stage.tenants)]
    ask, draft = stage.draft(_canary(tenant, "alone", f"load-{number}", length, number))
    await stage.send_drafted(ask, draft)
    others = stage.others(tenant) or (tenant,)
    load = [
        _canary(others[index % len(others)], "load", f"load-{number}", length, number + index) for index in range(LOAD)
    ]
    await stage.send_beside(replace(ask, role="loaded"), draft, load)
    await stage.send_again(ask, draft)


async def _after_others(stage: Stage, length: int, number: int) -> None:
    tenants = [stage.tenants[(number // 2 + index) % len(stage.tenants)] for index in range(3)]
    group = f"lot-{number}"
    ask, draft = stage.draft(replace(_canary(tenants[0], "after-b", group, length, number), logprobs=True))
    before: dict[str, tuple[Ask, Draft]] = {
        letter: _twins(*stage.draft(_canary(tenant, "before", group, length, number)))
        for letter, tenant in zip("bc", tenants[1:], strict=True)
    }
    ask, draft = _twins(ask, draft)
    lots = ["b", "c"] * PAIRS
    stage.rng.shuffle(lots)
    for letter in lots:
        await stage.send_twin(*before[letter])
        await stage.send_twin(replace(ask, role=f"after-{letter}"), draft)


def _twins(ask: Ask, draft: Draft) -> tuple[Ask, Draft]:
    """Take a prompt for the first of many that differ in their number: each is computed anew and fills pages."""
    return replace(ask, twin_of=ask.number), draft


def _canary(tenant: str, role: str, group: str, length: int, number: int) -> Canary:
    return Canary(
        tenant=tenant,
        phase=Phase.REPLAY,
        role=role,
        group=group,
        num_tokens=length,
        max_tokens=ANSWER_TOKENS,
        number=number,
    )
