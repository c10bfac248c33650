"""When decode rebuilds its session, and what a transport's settings are refused for."""

import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from kvfence.core.errors import SettingsError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.limits import Limits
from kvfence.core.settings import Settings, TransportSettings
from kvfence.protocol.admission import Capacity
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.lots import Lot, Quarantined, grant_lot, new_pool, quarantine_lot
from kvfence.protocol.node import Lives
from kvfence.protocol.transitions import DecodePhase, Fence
from kvfence.runtime.sessions import fence_of, require_transport, spare_records, spec_of, wants_session
from tests.fake_mooncake import fake_mooncake

P, D, G = (Incarnation(digit * 32) for digit in "123")
NUM_PAGES = 16
MOONCAKE = Settings(transport=TransportSettings(kind="mooncake"))


def attempt(counter: int) -> AttemptId:
    """The gateway's attempt of this number."""
    return AttemptId(G, counter)


def node_with(num_quarantined: int, *, answered: bool = True, drains: bool = True, alive: bool = True) -> DecodeNode:
    """A decode node with a hand-off of which so many pages are in quarantine."""
    pool, lot = grant_lot(new_pool(NUM_PAGES), num_quarantined)
    pool = quarantine_lot(pool, Quarantined(lot, attempt(1), frozenset({P}), drains))
    revoked = DecodeHandoff(attempt(1), P, num_quarantined, 4, DecodePhase.REVOKED, lot, abort_answered=answered)
    lives = Lives(D, peers=frozenset({P, G}) if alive else frozenset({G}), writers=frozenset({P}))
    capacity = Capacity(1, NUM_PAGES, NUM_PAGES, NUM_PAGES)
    return DecodeNode(lives, capacity, "layout", Fence.NEW_SESSION, pool, handoffs={attempt(1): revoked})


def in_flight(node: DecodeNode, phase: DecodePhase = DecodePhase.GRANTED) -> DecodeNode:
    """The same with a transfer under way."""
    other = DecodeHandoff(attempt(2), P, 1, 4, phase, Lot(9, (15,)))
    return replace(node, handoffs={**node.handoffs, attempt(2): other})


def waiting_for(node: DecodeNode, num_tokens: int) -> DecodeNode:
    """The same with somebody waiting for so many pages and one."""
    other = DecodeHandoff(attempt(3), P, num_tokens, 4)
    return replace(node, handoffs={**node.handoffs, attempt(3): other}, waiting=(attempt(3),))


def test_a_session_is_rebuilt_when_that_costs_nobody_anything() -> None:
    """Pages wait for the fence alone, and no transfer is in flight; running sequences do not mind."""
    assert wants_session(node_with(2))
    assert wants_session(in_flight(node_with(2), DecodePhase.RUNNING))


@pytest.mark.parametrize("phase", [DecodePhase.GRANTED, DecodePhase.VERIFYING])
def test_a_transfer_in_flight_puts_it_off(phase: DecodePhase) -> None:
    """It would be given up."""
    assert not wants_session(in_flight(node_with(2), phase))


def test_starving_does_not_wait_for_transfers() -> None:
    """More than a quarter of the pool is lost, or whoever is next cannot be served without these pages."""
    assert not wants_session(in_flight(node_with(4)))
    assert wants_session(in_flight(node_with(5)))
    assert not wants_session(waiting_for(in_flight(node_with(2)), 13))
    assert wants_session(waiting_for(in_flight(node_with(2)), 14))


def test_pages_that_may_yet_be_drained_are_waited_for() -> None:
    """Prefill has not answered; if it is dead, or the pages did not match, no answer will end it."""
    assert not wants_session(node_with(5, answered=False))
    assert wants_session(node_with(5, answered=False, alive=False))
    assert wants_session(node_with(5, answered=False, drains=False))


def test_nothing_in_quarantine_asks_for_nothing() -> None:
    """A session is not rebuilt for its own sake."""
    node = node_with(1)
    assert not wants_session(replace(node, pool=new_pool(NUM_PAGES), handoffs={}))


# ---- settings


@pytest.fixture
def installed() -> Iterator[None]:
    """Mooncake is there."""
    with fake_mooncake():
        yield


def test_each_transport_says_what_its_fence_is() -> None:
    """And Mooncake has a record behind each pool."""
    assert (fence_of(Settings()), spare_records(Settings())) == (Fence.PEER_EXIT, 0)
    assert (fence_of(MOONCAKE), spare_records(MOONCAKE)) == (Fence.NEW_SESSION, 1)


def test_each_role_has_its_own_address() -> None:
    """Prefill's and decode's hosts are two settings."""
    settings = Settings(transport=TransportSettings("mooncake", "rdma", "mlx5_0", "10.0.0.1", "10.0.0.2"))
    prefill, decode = spec_of(settings, "prefill"), spec_of(settings, "decode")
    assert (prefill.host, decode.host) == ("10.0.0.1", "10.0.0.2")
    assert (prefill.protocol, prefill.device) == ("rdma", "mlx5_0")


def test_loopback_is_exposed_to_nobody_else(installed: None) -> None:
    """Shared memory is not even asked; an address that others reach is warned of by name."""
    assert require_transport(Settings()) is None
    assert require_transport(MOONCAKE) is None
    exposed = require_transport(Settings(transport=TransportSettings("mooncake", decode_host="10.0.0.2")))
    assert exposed is not None
    assert "10.0.0.2" in exposed


def test_every_problem_is_told_at_once(installed: None) -> None:
    """Names, IPv6 and too large batches are refused before anything is loaded."""
    transport = TransportSettings("mooncake", prefill_host="my-host", decode_host="::1")
    with pytest.raises(SettingsError) as error:
        require_transport(Settings(transport=transport, limits=Limits(batch_pages_max=1025)))
    assert len(error.value.problems) == 3


def test_shared_memory_needs_no_mooncake(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not imported, and where it is asked for and missing, the install line is said."""
    with fake_mooncake():
        monkeypatch.setitem(sys.modules, "mooncake.engine", None)
        assert require_transport(Settings()) is None
        with pytest.raises(SettingsError, match=r"pip install '\.\[mooncake\]'"):
            require_transport(MOONCAKE)
