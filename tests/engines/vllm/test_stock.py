"""vLLM as shipped: what the guard is for. The last case ends the engine."""

import time

import cases
import pytest
from cases import CODE
from pair import Pair, metric, text_of

pytestmark = pytest.mark.timeout(2400)


def test_an_honest_hand_off_is_answered(stock: Pair) -> None:
    """Two blocks travel, and the answers are those of prefill alone, but for near ties."""
    assert CODE[:2] in text_of(cases.honest(stock, "ok"))
    assert cases.as_alone(stock, "same") >= 7


def test_a_short_count_is_answered(stock: Pair) -> None:
    """One token was computed, 27 were reserved: 200, from slots that nobody wrote for this request."""
    assert cases.short_count(stock, "short count").status_code == 200


def test_a_stale_reference_is_answered(stock: Pair) -> None:
    """The pages are another tenant's by now: 200, and only prefill counts something."""
    before = metric(stock.prefill, "vllm:nixl_num_notifications_after_expiry_total")
    assert cases.stale(stock, "stale").status_code == 200
    deadline = time.monotonic() + 60
    name = "vllm:nixl_num_notifications_after_expiry_total"
    while metric(stock.prefill, name) == before and time.monotonic() < deadline:
        cases.fill(stock, "more", 1)
    assert metric(stock.prefill, name) > before


def test_a_forged_reference_tells_another_tenants_secret(stock: Pair) -> None:
    """The prompt says nothing; the answer has the other tenant's code."""
    assert CODE in text_of(cases.forged(stock, "forged"))


def test_a_forged_reference_poisons_the_prefix_cache(stock: Pair) -> None:
    """A later request without any hand-off, which begins alike, has the code too."""
    assert CODE in text_of(cases.poisoned(stock, "forged"))


def test_a_block_too_many_is_answered(stock: Pair) -> None:
    """The last blocks of a longer prompt are taken for the prompt."""
    assert cases.one_block_too_many(stock, "many").status_code == 200


def test_a_block_out_of_range_is_an_error(stock: Pair) -> None:
    """This one stock vLLM closes."""
    assert cases.out_of_range(stock, "range").status_code == 500
    assert cases.alive(stock)


def test_a_replayed_hand_off_is_answered(stock: Pair) -> None:
    """A hand-off that was used is good for another use."""
    assert cases.replayed(stock, "replay").status_code == 200


def test_a_block_too_few_ends_decode(stock: Pair) -> None:
    """One remote block less than reserved: an assertion, and the process is gone."""
    assert cases.one_block_too_few(stock, "few").status_code == 500
    deadline = time.monotonic() + 60
    while stock.held.is_running("decode") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not stock.held.is_running("decode")
