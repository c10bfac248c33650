"""A request that fits its pool exactly runs to its end alone in it, whatever its prompt's last page holds."""

import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.protocol.admission import Capacity, decode_fit
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.sim.process import Setup
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World


@pytest.mark.parametrize("num_tokens", range(1, 17))
def test_a_request_that_just_fits_gets_all_its_tokens(num_tokens: int) -> None:
    """The copied tail's page is given back in time: nobody waits for a page that never comes."""
    capacity = Capacity(page_size=4, context_tokens=64, prefill_pages=8, decode_pages=5)
    most = max(n for n in range(1, 64) if decode_fit(capacity, num_tokens, n).holds)
    request = SimRequest(RequestId("r"), TenantId("t"), num_tokens, most)
    world = World(Setup(Rules.all(), capacity), [request]).run()
    assert world.broken == {}
    assert world.answers[request.id].reason is EndReason.LENGTH
    assert world.answers[request.id].num_tokens == most
