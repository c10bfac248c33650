"""Whose prefix is cached for whom: one's own, another tenant's and a fresh one, interleaved, for a test of latency.

The prompts of a group differ in their last words alone; they hold no marker, because two tenants send the same text.
"""

from msgspec.structs import replace

from kvfence.probe.exchange import Phase
from kvfence.probe.phases.seed import honest_limit
from kvfence.probe.stage import Canary, Stage
from kvfence.probe.texts import PLAIN

SHARE = 0.6
GROUP = 4
ANSWER_TOKENS = 2


async def run(stage: Stage) -> None:
    """Prime with one tenant's prefix, then ask the three kinds in an order drawn by lot."""
    length = max(48, int(honest_limit(stage) * SHARE))
    number = 0
    while stage.has_room(GROUP, GROUP * length):
        await _group(stage, length, number)
        number += 1


async def _group(stage: Stage, length: int, number: int) -> None:
    owner = stage.tenants[number % len(stage.tenants)]
    other = stage.tenants[(number + 1) % len(stage.tenants)]
    nonce = stage.fresh_nonce()
    prime = Canary(
        tenant=owner,
        phase=Phase.PREFIX,
        role="prime",
        group=f"prefix-{number}",
        kind=PLAIN,
        num_tokens=length,
        max_tokens=ANSWER_TOKENS,
        nonce=nonce,
        tail=" first",
    )
    ask, draft = stage.draft(prime)
    shape = (draft.units, draft.fillers)
    await stage.send_drafted(ask, draft)
    kinds = [
        replace(prime, role="own", shape=shape, tail=" second"),
        replace(prime, role="foreign", tenant=other, shape=shape, tail=" third"),
        replace(prime, role="control", tenant=other, shape=shape, tail=" fourth", nonce=stage.fresh_nonce()),
    ]
    stage.rng.shuffle(kinds)
    for kind in kinds:
        await stage.send(kind)
