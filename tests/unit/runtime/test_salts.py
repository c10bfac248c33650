"""A salt stands for a tenant and its request's own salt, and names neither."""

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.runtime.salts import Salter


def request(tenant: str, cache_salt: str = "") -> Request:
    """A request of a tenant."""
    return Request(RequestId("r"), TenantId(tenant), (1, 2), 4, SamplingParams(), cache_salt=cache_salt)


def test_equal_only_for_the_same_tenant_and_the_same_salt() -> None:
    """No tenant can word its salt so that it meets another tenant's."""
    salter = Salter()
    whose = [("a", ""), ("b", ""), ("a", "b"), ("ab", ""), ("a", ","), ('a","', ""), ("", "a")]
    assert len({salter.salt(request(*each)) for each in whose}) == len(whose)
    assert salter.salt(request("a", "b")) == salter.salt(request("a", "b"))


def test_another_life_has_other_salts_and_no_salt_holds_a_name() -> None:
    """Traces of two lives cannot be joined by salt."""
    first, second = (Salter().salt(request("a-tenant")) for _ in range(2))
    assert first != second
    assert "a-tenant" not in first
