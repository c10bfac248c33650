"""Quotas: tokens refill evenly, what is not used comes back, and tenants do not touch each other."""

from kvfence.core.ids import TenantId
from kvfence.gateway.quotas import Allowance, Ask, Lease, Quotas
from kvfence.gateway.responses import Failure

A, B = TenantId("a"), TenantId("b")


class Clock:
    """Stands still until told."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def quotas(clock: Clock, **bounds: int) -> Quotas:
    """Everyone has the same bounds but tenant b, who has none."""
    return Quotas(Allowance(**bounds), {B: Allowance()}, clock)


def taken(lease: Lease | Failure) -> Lease:
    """A lease that was granted."""
    assert isinstance(lease, Lease), lease
    return lease


def refused(lease: Lease | Failure) -> Failure:
    """A refusal to come back for."""
    assert isinstance(lease, Failure)
    assert lease.status == 429
    return lease


def test_tokens_refill_evenly() -> None:
    """Whoever used up the minute waits for what is missing, no longer and no shorter than told."""
    clock = Clock()
    quota = quotas(clock, tokens_per_minute=60)
    taken(quota.take(A, Ask(1, 20, 40)))
    failure = refused(quota.take(A, Ask(1, 10, 20)))
    assert failure.retry_after_s == 30
    clock.now_s = 29.0
    assert refused(quota.take(A, Ask(1, 10, 20))).retry_after_s == 1
    clock.now_s = 30.0
    taken(quota.take(A, Ask(1, 10, 20)))
    taken(quota.take(B, Ask(9, 10**6, 10**6)))


def test_what_is_not_used_comes_back_once() -> None:
    """An answer shorter than it might have been gives back the rest; a refused request everything; never above full."""
    clock = Clock()
    quota = quotas(clock, tokens_per_minute=100)
    lease = taken(quota.take(A, Ask(1, 10, 90)))
    assert lease.headers["x-ratelimit-remaining-tokens"] == "0"
    lease.end(5, refused=False)
    assert taken(quota.take(A, Ask(1, 0, 0))).headers["x-ratelimit-remaining-tokens"] == "85"
    taken(quota.take(A, Ask(1, 5, 80))).end(0, refused=True)
    clock.now_s = 600.0
    assert taken(quota.take(A, Ask(1, 0, 0))).headers["x-ratelimit-remaining-tokens"] == "100"


def test_a_request_larger_than_the_bucket_waits_until_it_is_full_and_then_goes() -> None:
    """No request is refused for ever; the bucket pays it back afterwards."""
    clock = Clock()
    quota = quotas(clock, tokens_per_minute=60)
    taken(quota.take(A, Ask(1, 100, 80)))
    assert refused(quota.take(A, Ask(1, 1, 0))).retry_after_s == 121
    clock.now_s = 121.0
    taken(quota.take(A, Ask(1, 1, 0)))


def test_choices_count_against_what_is_open_at_once() -> None:
    """All choices of a request are open until it ends; more than are ever allowed is no matter of waiting."""
    quota = quotas(Clock(), requests_max=3)
    lease = taken(quota.take(A, Ask(2, 1, 1)))
    assert refused(quota.take(A, Ask(2, 1, 1))).name == "tenant_requests"
    never = quota.take(A, Ask(4, 1, 1))
    assert isinstance(never, Failure)
    assert (never.status, never.param) == (400, "n")
    lease.end(1, refused=False)
    taken(quota.take(A, Ask(3, 1, 1)))
