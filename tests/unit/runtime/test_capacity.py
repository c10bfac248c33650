"""The start-up check: the comparison that nothing made in the incident."""

import pytest

from kvfence.core.errors import CapacityError, LayoutMismatch
from kvfence.core.settings import PoolSettings
from kvfence.protocol.admission import Capacity, fits
from kvfence.runtime.capacity import check_capacity, check_layouts, plan_pools, settle_capacity
from kvfence.runtime.lifeline import Loaded


def loaded(*num_pages: int, layout: str = "l", context: int = 4096) -> list[Loaded]:
    """What the workers of a role report once their models are loaded."""
    return [Loaded(layout, 16, 1024, number, context, 0, "llama") for number in num_pages]


def test_the_default_pools_hold_one_context_and_decode_one_page_more() -> None:
    """Without flags nothing is refused at start."""
    pages = plan_pools(PoolSettings(), 1000).pages
    assert pages == {"prefill": 63, "decode": 64}
    check_capacity(Capacity(16, 1000, pages["prefill"], pages["decode"]))


@pytest.mark.parametrize(("prefill", "decode", "role"), [(62, 64, "prefill"), (63, 63, "decode")])
def test_a_pool_below_one_context_is_refused_with_numbers_and_a_flag_that_mends_it(
    prefill: int, decode: int, role: str
) -> None:
    """Either role one page short: both roles' numbers, the arithmetic and the flag; the flag's value mends it."""
    with pytest.raises(CapacityError) as caught:
        check_capacity(Capacity(16, 1000, prefill, decode))
    text = str(caught.value)
    assert f"{role}: {prefill if role == 'prefill' else decode} pages" in text
    assert "1 pages too few" in text
    value = int(text.split("--pool-tokens ")[1].split(",")[0])
    pages = plan_pools(PoolSettings(tokens=value), 1000).pages
    check_capacity(Capacity(16, 1000, pages["prefill"], pages["decode"]))


def test_the_context_it_proposes_fits() -> None:
    """The other way out, a smaller context, passes the check too."""
    with pytest.raises(CapacityError) as caught:
        check_capacity(Capacity(16, 1000, 40, 30))
    context = int(str(caught.value).split("--context ")[1].split(",")[0])
    check_capacity(Capacity(16, context, 40, 30))
    assert context == 29 * 16


def test_no_context_is_proposed_where_none_fits() -> None:
    """A decode pool of one page holds no context: only a larger pool mends that."""
    with pytest.raises(CapacityError) as caught:
        check_capacity(Capacity(16, 1000, 63, 1))
    assert "--pool-tokens 1024" in str(caught.value)
    assert "--context" not in str(caught.value)


def test_a_context_below_one_page_is_refused_as_such() -> None:
    """The pools are not blamed for a context of one token."""
    with pytest.raises(CapacityError, match="a context of 1 tokens is less than one page"):
        settle_capacity(loaded(100), loaded(100), 1)


def test_auto_takes_the_largest_context_that_both_pools_hold() -> None:
    """``--context auto`` is bounded by prefill's pool, decode's pool less a page, and the model."""
    assert settle_capacity(loaded(100), loaded(51), 0).context_tokens == 800
    assert settle_capacity(loaded(40), loaded(51), 0).context_tokens == 640
    assert settle_capacity(loaded(1000), loaded(1000), 0).context_tokens == 4096


def test_without_the_check_a_small_pool_starts() -> None:
    """Taking the check away lets the incident's configuration start; that is what the check is for."""
    capacity = settle_capacity(loaded(10), loaded(100), 1000, check=False)
    assert not all(fit.holds for fit in fits(capacity, 900, 100))
    with pytest.raises(CapacityError):
        settle_capacity(loaded(10), loaded(100), 1000)


def test_workers_with_different_layouts_do_not_start() -> None:
    """Workers that lay out bytes differently never exchange a page."""
    check_layouts(loaded(10, 11, 12))
    with pytest.raises(LayoutMismatch):
        check_layouts([*loaded(10, 10), *loaded(10, layout="m")])


def test_of_several_pools_the_smallest_of_each_role_counts() -> None:
    """A request may be placed on any pair, so what does not fit one pool is served by none."""
    capacity = settle_capacity(loaded(100, 80, 90), loaded(70, 200), 0)
    assert (capacity.prefill_pages, capacity.decode_pages, capacity.context_tokens) == (80, 70, 69 * 16)
    with pytest.raises(CapacityError, match="decode: 40 pages"):
        settle_capacity(loaded(100), loaded(200, 40), 1000)


def test_a_memory_fraction_leaves_the_size_to_the_worker() -> None:
    """The pool is computed from the memory left after the weights, so it is unknown before."""
    assert plan_pools(PoolSettings(memory_fraction=0.5), 1000).pages == {"prefill": 0, "decode": 0}
    assert plan_pools(PoolSettings(memory_fraction=0.5, tokens=64), 1000).pages == {"prefill": 4, "decode": 4}
