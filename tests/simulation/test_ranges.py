"""The mistakes of practice servers that rewrite events, on the protocol alone: every guard that is away matters."""

import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.driver.mutants import lose_the_tail
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import GUARDS, Rules
from kvfence.protocol.messages import EndReason
from kvfence.ranges.catalogue import RANGES
from kvfence.sim.process import Setup
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World

LONG = RequestId("long")


def play(rules: Rules, num_tokens: int = 150) -> World:
    """Another tenant first, then a prompt that fills most of prefill's pool."""
    capacity = Capacity(page_size=16, context_tokens=256, prefill_pages=16, decode_pages=20)
    requests = [
        SimRequest(RequestId("earlier"), TenantId("ada"), 240, 8),
        SimRequest(LONG, TenantId("bob"), num_tokens, 8),
    ]
    setup = Setup(rules, capacity, rewrites=(lose_the_tail(capacity),), concurrency=1, checked=False)
    return World(setup, requests).run()


def test_a_lost_tail_is_read_as_what_was_there() -> None:
    """The answer has all its tokens, and was made of another tenant's pages; a shorter prompt loses nothing."""
    world = play(RANGES["truncated"].rules())
    assert LONG in world.oracle.leaks()
    assert world.answers[LONG].reason is EndReason.LENGTH
    assert LONG not in play(RANGES["truncated"].rules(), 100).oracle.leaks()


@pytest.mark.parametrize("guard", RANGES["truncated"].lacks)
def test_any_guard_put_back_stops_it(guard: str) -> None:
    """Nothing foreign is let out, and the client hears of an error."""
    world = play(RANGES["truncated"].rules((guard,)))
    assert not world.oracle.leaks()
    assert world.answers[LONG].reason not in (EndReason.STOP, EndReason.LENGTH)


@pytest.mark.parametrize("name", RANGES)
def test_a_range_lacks_guards_that_there_are(name: str) -> None:
    """Each guard that is away exists, and ``sound`` lacks none."""
    assert {guard.partition("@")[0] for guard in RANGES[name].lacks} <= set(GUARDS)
    assert (RANGES[name].rules() == Rules.all()) == (name == "sound")
