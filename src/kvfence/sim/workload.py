"""What clients ask for: fixed lists, or drawn from a seed."""

import random

from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId


class SimRequest(Struct, frozen=True):
    """One request. ``leaves_after``: its client disconnects once it has had this many tokens; None: never."""

    id: RequestId
    tenant: TenantId
    num_tokens: int
    max_tokens: int
    leaves_after: int | None = None


def draw_requests(rng: random.Random, num_requests: int, tokens_max: int) -> tuple[SimRequest, ...]:
    """Draw requests of a few tenants; most fit ``tokens_max``, one in ten does not."""
    requests = []
    for number in range(num_requests):
        num_tokens = rng.randint(1, tokens_max - 1)
        max_tokens = rng.randint(1, tokens_max - num_tokens)
        if rng.random() < 0.1:
            num_tokens += tokens_max
        tenant = TenantId(f"tenant-{rng.randint(1, 3)}")
        requests.append(SimRequest(RequestId(f"r{number + 1}"), tenant, num_tokens, max_tokens))
    return tuple(requests)
