"""How large the pools are, whether one context fits them, and which flag mends it: pure arithmetic over settings.

The incident's first cause was a pool smaller than the context that nothing compared. Here ``serve`` compares.
"""

from collections.abc import Sequence

from msgspec import Struct

from kvfence.core.errors import CapacityError, LayoutMismatch
from kvfence.core.settings import PoolSettings, Role
from kvfence.protocol.admission import Capacity
from kvfence.runtime.lifeline import Loaded


class PlannedPools(Struct, frozen=True):
    """Pages of each worker of a role as the settings ask for; 0: it computes them from the memory left."""

    pages: dict[Role, int]


def plan_pools(pool: PoolSettings, context_tokens: int) -> PlannedPools:
    """Give the pages each worker of a role takes.

    Units:
        context_tokens: what one sequence may hold; the default pools hold one of it, decode one page more.
    """
    size = pool.page_size
    if pool.memory_fraction and not (pool.tokens or pool.prefill_tokens or pool.decode_tokens):
        return PlannedPools({"prefill": 0, "decode": 0})
    one_context = -(-context_tokens // size)
    wanted = {"prefill": pool.prefill_tokens or pool.tokens, "decode": pool.decode_tokens or pool.tokens}
    prefill = -(-wanted["prefill"] // size) if wanted["prefill"] else one_context
    decode = -(-wanted["decode"] // size) if wanted["decode"] else one_context + 1
    return PlannedPools({"prefill": prefill, "decode": decode})


def check_layouts(workers: Sequence[Loaded]) -> None:
    """Refuse workers whose pages differ.

    Raises:
        LayoutMismatch: model, dtype, page size or digest differ.
    """
    one = workers[0]
    for other in workers[1:]:
        if one.layout != other.layout:
            raise LayoutMismatch(
                f"workers lay out pages differently: {one.record_bytes} and {other.record_bytes} bytes a page of "
                f"{one.page_size} and {other.page_size} tokens; give all the same model, dtype and page size"
            )


def settle_capacity(
    prefill: Sequence[Loaded], decode: Sequence[Loaded], context_tokens: int, *, check: bool = True
) -> Capacity:
    """Give the capacity to serve: the asked context, or for 0 the largest that every pool holds.

    What is served must fit whichever pair it is placed on, so the smallest pool of each role counts.

    Raises:
        LayoutMismatch: two workers lay out pages differently.
        CapacityError: a pool cannot hold one context, with both roles' numbers and the flag that mends it.
    """
    check_layouts([*prefill, *decode])
    size = decode[0].page_size
    prefill_pages, decode_pages = (min(worker.num_pages for worker in role) for role in (prefill, decode))
    if context_tokens == 0:
        context_tokens = min(prefill[0].context_tokens, prefill_pages * size, (decode_pages - 1) * size)
    if context_tokens < size:
        raise CapacityError(
            f"a context of {context_tokens} tokens is less than one page ({size} tokens): raise --context and "
            f"--pool-tokens to {2 * size} or more, or lower --page-size"
        )
    capacity = Capacity(size, context_tokens, prefill_pages, decode_pages)
    if check:
        check_capacity(capacity)
    return capacity


def check_capacity(capacity: Capacity) -> None:
    """Refuse to serve a context that a pool cannot hold.

    Raises:
        CapacityError: see ``settle_capacity``.
    """
    size, context = capacity.page_size, capacity.context_tokens
    need = capacity.num_pages(context)
    rows = (("prefill", capacity.prefill_pages, need), ("decode", capacity.decode_pages, need + 1))
    if all(have >= wanted for _, have, wanted in rows):
        return
    lines = [f"the context of {context} tokens is {need} pages of {size} tokens; a pool must hold one whole context:"]
    for role, have, wanted in rows:
        verdict = "enough" if have >= wanted else f"{wanted - have} pages too few"
        extra = " (one page more than the context, for the tail's copy)" if role == "decode" else ""
        lines.append(f"  {role}: {have} pages = {have * size} tokens, needs {wanted}{extra}: {verdict}")
    fitting = min(capacity.prefill_pages, capacity.decode_pages - 1) * size
    mend = f"mend it with --pool-tokens {(need + 1) * size}"
    if fitting < size:
        lines.append(mend)
    else:
        lines.append(f"{mend}, or lower the context: --context {fitting},")
        lines.append("or --context auto, which takes the largest context that both pools hold")
    raise CapacityError("\n".join(lines))
