"""What fits, and who may queue: pure functions over numbers.

Not for: asking the guard ``fits`` (the nodes do) or wording the refusal (``gateway/responses.py``).
"""

from msgspec import Struct

from kvfence.core.limits import Limits
from kvfence.protocol.messages import EndReason


class Capacity(Struct, frozen=True):
    """Total capacities, quarantined pages included: quarantine delays, it never refuses.

    Units: prefill_pages, decode_pages in pages of page_size tokens; 0 where the asker has no such pool.
    """

    page_size: int
    context_tokens: int
    prefill_pages: int
    decode_pages: int

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)


class Fit(Struct, frozen=True):
    """One sum behind ``fits``: ``needed <= available`` of ``resource``."""

    resource: str
    needed: int
    available: int

    @property
    def holds(self) -> bool:
        """Does it fit?"""
        return self.needed <= self.available


def context_fit(capacity: Capacity, num_tokens: int, max_tokens: int) -> Fit:
    """Prompt and answer together fit the context, in tokens."""
    return Fit("context tokens", num_tokens + max_tokens, capacity.context_tokens)


def prefill_fit(capacity: Capacity, num_tokens: int) -> Fit:
    """The whole prompt fits prefill's pool, in pages."""
    return Fit("prefill pages", capacity.num_pages(num_tokens), capacity.prefill_pages)


def decode_fit(capacity: Capacity, num_tokens: int, max_tokens: int) -> Fit:
    """Prompt and answer fit decode's pool, in pages; one page more than the prompt for the tail's copy."""
    answer = capacity.num_pages(num_tokens + max_tokens)
    return Fit("decode pages", max(capacity.num_pages(num_tokens) + 1, answer), capacity.decode_pages)


def fits(capacity: Capacity, num_tokens: int, max_tokens: int) -> tuple[Fit, ...]:
    """All three sums, the context's first."""
    return (
        context_fit(capacity, num_tokens, max_tokens),
        prefill_fit(capacity, num_tokens),
        decode_fit(capacity, num_tokens, max_tokens),
    )


class Load(Struct, frozen=True):
    """What a gateway has open now; a cancelled request counts until its hand-off has settled."""

    open_total: int
    open_of_tenant: int
    workers_ready: bool


class Admit(Struct, frozen=True):
    """Go on to placement."""


class Refuse(Struct, frozen=True):
    """Answer now. ``retry_after_s``: when it is worth asking again; 0 where it never is."""

    reason: EndReason
    retry_after_s: int = 0


def decide(limits: Limits, load: Load) -> Admit | Refuse:
    """Say whether a request that fits may enter now."""
    if not load.workers_ready:
        return Refuse(EndReason.NO_WORKER, retry_after_s=5)
    if load.open_of_tenant >= limits.queue_tenant_max:
        return Refuse(EndReason.QUEUE_FULL, retry_after_s=1)
    if load.open_total >= limits.attempts_open_max:
        return Refuse(EndReason.SERVER_FULL, retry_after_s=1)
    return Admit()
