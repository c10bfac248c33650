"""What a worker says of itself, and what fits a pair of them: as measured, not as a command line asked.

Not for: how it is asked (``sglang.py``, ``vllm.py``).
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.settings import Role
from kvfence.protocol.admission import Fit


class Measured(Struct, frozen=True):
    """One worker's limits as it enforces them.

    Units:
        tokens. prompt_max: the longest prompt it takes. total_max: prompt and answer together.
        reserve: what it wants free behind a prompt before it takes it. meeting_port: where decode finds it; 0: nowhere.
    """

    role: Role
    model: str
    version: str
    page_size: int
    pool: int
    prompt_max: int
    total_max: int
    reserve: int = 0
    meeting_port: int = 0


def smallest(workers: Sequence[Measured]) -> Measured:
    """Give the limits that every worker of a role keeps: any of them may get the request."""
    return replace(
        workers[0],
        page_size=max(each.page_size for each in workers),
        pool=min(each.pool for each in workers),
        prompt_max=min(each.prompt_max for each in workers),
        total_max=min(each.total_max for each in workers),
        reserve=max(each.reserve for each in workers),
    )


def sums(prefill: Measured, decode: Measured, num_tokens: int, max_tokens: int) -> tuple[Fit, ...]:
    """Give every sum that a pair makes of a request, the context's first.

    Source: a pair of unequal limits is how the incident began: prefill refused what decode had reserved pages for.
    """
    return (
        Fit("context tokens", num_tokens + max_tokens, decode.total_max),
        Fit("prefill prompt tokens", num_tokens, prefill.prompt_max),
        Fit("prefill pool tokens", _padded(num_tokens, prefill.page_size), prefill.pool),
        Fit("decode prompt tokens", num_tokens, decode.prompt_max),
        Fit("decode pool tokens", _padded(num_tokens + max(decode.reserve, max_tokens), decode.page_size), decode.pool),
    )


def _padded(num_tokens: int, page_size: int) -> int:
    """Whole pages are taken."""
    return -(-num_tokens // page_size) * page_size
