"""Tenants' prompts and generations dense with markers: what a leak would show. Lengths aligned to pages and not.

Whether a leak is readable depends on where stale text lands: seeds are therefore as long as the prompts that may read
them, and long and short, repetitive and natural by turns.
"""

from collections.abc import Sequence

from kvfence.probe.exchange import Phase
from kvfence.probe.stage import Canary, Stage
from kvfence.probe.texts import NATURAL

PAGE_SIZES = (16, 32, 64, 128)
SHARES = (0.5, 0.9, 0.3, 0.7)
SEED_ANSWER_TOKENS = 16


async def run(stage: Stage) -> None:
    """Seed every tenant, in rounds, as long as the share lasts."""
    number = 0
    while stage.has_room(len(stage.tenants), (length := _length(stage, number)) * len(stage.tenants)):
        await stage.send_all(seeds(stage, stage.tenants, length, number))
        number += 1


def _length(stage: Stage, number: int) -> int:
    return int(honest_limit(stage) * SHARES[number % len(SHARES)])


def honest_limit(stage: Stage) -> int:
    """Give the longest prompt that a tenant may be sure is served: calibration's, less an answer."""
    known = stage.calibration.limit_tokens or stage.calibration.limit_low or stage.calibration.advertised_tokens
    return max(48, stage.below_hung((known or 512) - SEED_ANSWER_TOKENS))


def seeds(stage: Stage, tenants: Sequence[str], num_tokens: int, number: int, group: str = "seed") -> list[Canary]:
    """Make one seeding prompt for each tenant, of about this length, or aligned to a page below it."""
    page = PAGE_SIZES[number % len(PAGE_SIZES)]
    made = []
    for index, tenant in enumerate(tenants):
        natural = (number + index) % 4 == 3
        length = num_tokens - num_tokens % page if num_tokens > page and (number + index) % 2 == 0 else num_tokens
        made.append(
            Canary(
                tenant=tenant,
                phase=Phase.SEED,
                role="natural" if natural else "repetitive",
                kind=NATURAL if natural else stage.lines_kind(number + index // 2),
                group=f"{group}-{number}",
                num_tokens=max(32, length),
                max_tokens=SEED_ANSWER_TOKENS,
                number=number,
            )
        )
    return made
