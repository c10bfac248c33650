"""What clients ask for: fixed lists, or drawn from a seed."""

import random
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import RequestId, TenantId


class SimRequest(Struct, frozen=True):
    """One request.

    ``leaves_after``: its client disconnects once it has had this many tokens; None: never. ``family``: its first
    ``num_common`` tokens are those of every prompt of this family, whoever asks.
    """

    id: RequestId
    tenant: TenantId
    num_tokens: int
    max_tokens: int
    leaves_after: int | None = None
    family: str = ""
    num_common: int = 0

    def content(self, position: int, page_size: int) -> str:
        """Name the tokens up to the end of a page: the family's, or this request's alone."""
        return self.family if (position + 1) * page_size <= self.num_common else self.id


def draw_requests(rng: random.Random, num_requests: int, tokens_max: int, prefix: str = "r") -> tuple[SimRequest, ...]:
    """Draw requests of a few tenants, named from ``prefix``; most fit ``tokens_max``, one in ten does not."""
    requests = []
    for number in range(num_requests):
        num_tokens = rng.randint(1, tokens_max - 1)
        max_tokens = rng.randint(1, tokens_max - num_tokens)
        if rng.random() < 0.1:
            num_tokens += tokens_max
        tenant = TenantId(f"tenant-{rng.randint(1, 3)}")
        requests.append(SimRequest(RequestId(f"{prefix}{number + 1}"), tenant, num_tokens, max_tokens))
    return tuple(requests)


def draw_families(rng: random.Random, requests: Iterable[SimRequest]) -> tuple[SimRequest, ...]:
    """Let most prompts begin as others do, of their own tenant and of others."""
    drawn = []
    for request in requests:
        family = rng.choice(("", "family-1", "family-1", "family-1", "family-2"))
        num_common = rng.randint(request.num_tokens // 2, request.num_tokens) if family else 0
        tenant = TenantId(f"tenant-{rng.choice((1, 1, 2))}")
        drawn.append(replace(request, tenant=tenant, family=family, num_common=num_common))
    return tuple(drawn)
