"""What fits, for every size."""

from hypothesis import given
from hypothesis import strategies as st

from kvfence.core.limits import Limits
from kvfence.protocol.admission import Admit, Capacity, Load, Refuse, decide, fits
from kvfence.protocol.messages import EndReason

SIZES = st.integers(1, 500)


@given(st.integers(1, 64), SIZES, SIZES, SIZES)
def test_pools_of_one_context_hold_every_prompt_of_the_context(
    page_size: int, context: int, num_tokens: int, max_tokens: int
) -> None:
    """With prefill >= context and decode >= context + one page the context alone decides."""
    pages = -(-context // page_size)
    capacity = Capacity(page_size, context, pages, pages + 1)
    in_context, in_prefill, in_decode = fits(capacity, num_tokens, max_tokens)
    assert in_context.holds == (num_tokens + max_tokens <= context)
    if in_context.holds:
        assert in_prefill.holds
        assert in_decode.holds


@given(st.integers(0, 400), st.integers(0, 200), st.booleans())
def test_a_refusal_says_when_to_come_back(open_total: int, open_of_tenant: int, ready: bool) -> None:
    """Whoever is refused for now is told so with a delay; whoever is below every bound enters."""
    limits = Limits()
    answer = decide(limits, Load(open_total, open_of_tenant, ready))
    full = open_total >= limits.attempts_open_max or open_of_tenant >= limits.queue_tenant_max
    if not ready or full:
        assert isinstance(answer, Refuse)
        own = EndReason.QUEUE_FULL if open_of_tenant >= limits.queue_tenant_max else EndReason.SERVER_FULL
        assert answer.reason is (own if ready else EndReason.NO_WORKER)
        assert answer.retry_after_s > 0
    else:
        assert answer == Admit()
