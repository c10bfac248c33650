"""A plan fills its budget, leaves no phase out and says what it comes to."""

import pytest

from kvfence.probe.budget import Budget
from kvfence.probe.exchange import Phase
from kvfence.probe.plan import make_plan

ALL = tuple(Phase)


@pytest.mark.parametrize("requests", [12, 40, 64, 65, 200, 2000])
def test_every_phase_has_a_share_and_the_shares_are_the_budget(requests: int) -> None:
    """All phases are there in small; together they are what was allowed, and half of the rest is the incident's."""
    plan = make_plan(Budget(requests_max=requests), ALL, 2048)
    assert [share.phase for share in plan.shares] == list(ALL)
    assert all(share.requests >= 1 for share in plan.shares)
    assert plan.requests <= requests
    assert requests <= 64 or plan.requests == requests
    if requests >= 200:
        power = plan.of(Phase.SEED).requests + plan.of(Phase.OVERSIZE).requests
        assert power > 0.35 * requests


def test_tokens_and_money_shrink_a_plan() -> None:
    """A dear or long context makes fewer and no phase vanish."""
    wide = make_plan(Budget(requests_max=400), ALL, 131_072)
    tight = make_plan(Budget(requests_max=400, tokens_max=4_000_000), ALL, 131_072)
    paid = make_plan(Budget(requests_max=400, cost_max=2.0, price_in=1.0, price_out=4.0), ALL, 131_072)
    assert wide.tokens_in > tight.tokens_in
    assert tight.tokens_in + tight.tokens_out <= 4_000_000
    assert tight.shrunk
    assert paid.cost is not None
    assert paid.cost <= 2.0
    assert all(share.requests >= 4 for share in tight.shares)


def test_a_cost_is_told_only_where_a_price_was_given() -> None:
    """Nothing is guessed about money."""
    assert make_plan(Budget(), ALL, 2048).cost is None
    assert make_plan(Budget(price_in=2.0), ALL, 2048).cost == pytest.approx(
        2e-6 * make_plan(Budget(), ALL, 2048).tokens_in
    )


def test_an_unknown_context_is_said_to_be_a_guess() -> None:
    """A server that names no context is estimated as if it had one."""
    assert not make_plan(Budget(), ALL, None).context_known
