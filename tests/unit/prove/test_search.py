"""The search over ``step``: what it finds, how many worlds there are, and that its reductions change no verdict."""

import pytest
from msgspec.structs import replace

from kvfence.core.errors import SettingsError
from kvfence.driver.mutants import INCIDENT_LACKS
from kvfence.protocol.guards import Rules
from kvfence.prove.bounds import FAULTS, Asked, Bounds
from kvfence.prove.cases import CASES
from kvfence.prove.search import Limits, Search, explore
from kvfence.prove.story import tell

ONE = Bounds(requests=(Asked(),))
CAPACITY = ONE.capacity
SHORT = replace(ONE, requests=(Asked(max_tokens=1),), capacity=replace(CAPACITY, prefill_pages=1, decode_pages=2))
INCIDENT = Bounds(
    requests=(Asked(), Asked(num_tokens=4, tenant=1)),
    capacity=replace(CAPACITY, prefill_pages=1, context_tokens=8),
    rules=Rules.without(*INCIDENT_LACKS),
    setups=frozenset({"placeholder"}),
)
LATE = Bounds(
    capacity=replace(CAPACITY, decode_pages=2, prefill_pages=1),
    rules=Rules.without("quarantine-on-revoke"),
    faults=frozenset({"deadline"}),
    faults_max=1,
)

STATES = {
    "loss": 146,
    "duplicate": 720,
    "corrupt": 104,
    "misdirect": 53,
    "stall": 237,
}
"""How many worlds one request has with one fault at most: when this changes, say why in the commit."""


@pytest.mark.parametrize("fault", STATES)
def test_one_request_with_every_guard_is_safe_whatever_goes_wrong_once(fault: str) -> None:
    """Every world of one request is seen, none breaks a property, and there are as many as there were."""
    result = explore(replace(ONE, faults=frozenset({fault}), faults_max=1))
    assert (result.exhausted, result.broken, result.states) == (True, (), STATES[fault])


def test_the_incident_is_found_at_once() -> None:
    """Without the guards that its engine lacked, the placeholder's answer is computed from pages nobody wrote."""
    search = Search(INCIDENT, targets={"reads-own-bytes"})
    result = search.run()
    way = next(way for way in result.broken if way.name == "reads-own-bytes")
    assert result.cpu_s < 0.1
    story = tell(search, way)
    assert len(story.moments) == len(way.edges)
    assert "reads page 0 (B page 1), page 1" in story.moments[-2].text
    assert any("refusal-is-final" in guard for moment in story.moments for guard in moment.guards)


def test_the_incident_does_not_happen_with_every_guard() -> None:
    """The same world with all guards is exhausted and breaks nothing."""
    result = explore(replace(INCIDENT, rules=Rules.all()))
    assert (result.exhausted, result.broken) == (True, ())


def test_a_late_write_is_found() -> None:
    """Pages released while their writer is active are written by it afterwards."""
    result = explore(LATE, targets={"no-stray-write"})
    assert "no-stray-write" in [way.name for way in result.broken]
    assert result.cpu_s < 1


def test_a_bound_that_is_met_is_unknown() -> None:
    """A search that stops early says so, and does not say exhausted."""
    result = explore(Bounds(faults=frozenset(FAULTS)), Limits(states_max=300))
    assert not result.exhausted
    assert result.bound == "300 states"


def test_names_alone_make_no_other_world() -> None:
    """Without the reductions the same properties hold, in more worlds and with as many kinds of rest."""
    bounds = replace(ONE, faults=frozenset({"cancel"}), faults_max=1)
    reduced, whole = explore(bounds), explore(replace(bounds, exact=True))
    assert reduced.exhausted
    assert whole.exhausted
    assert (reduced.broken, whole.broken) == ((), ())
    assert reduced.reached == whole.reached
    assert reduced.states <= whole.states


def test_requests_that_are_alike_are_one_up_to_their_names() -> None:
    """Submitted in any order there are twice as many worlds, less the first, and nothing else is reached or broken."""
    bounds = replace(LATE, rules=Rules.all(), faults=frozenset(), exact=True)
    one, both = explore(bounds), explore(replace(bounds, swapped=True))
    assert both.states == 2 * one.states - 1
    assert (both.broken, both.reached, both.depth) == (one.broken, one.reached, one.depth)


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_clients_wait_at_once_than_may(most: int) -> None:
    """Who asks, and who asks again, waits until one of the others was answered; without the bound all three do."""
    three = tuple(Asked(max_tokens=1, tenant=number) for number in range(3))
    bounds = replace(SHORT, requests=three, faults=frozenset({"cancel", "retry"}), faults_max=2, settled=True)
    search = Search(replace(bounds, asking_max=most), Limits(states_max=1500))
    search.run()
    clients = search.model.tables.clients
    assert max(clients[world.clients].num_asking for world in search.seen) == most
    free = Search(bounds, Limits(states_max=100))
    free.run()
    assert max(free.model.tables.clients[world.clients].num_asking for world in free.seen) == 3
    assert any(max(clients[world.clients].submitted) == 2 for world in search.seen)  # somebody did ask again


@pytest.mark.parametrize(("cached", "evicted"), [(0, False), (1, True)])
def test_pages_are_evicted_where_some_are_cached(cached: int, evicted: bool) -> None:
    """*evicted* is reached where a cached page makes room, and not where a page only goes from one to the next."""
    result = explore(replace(LATE, rules=Rules.all(), faults=frozenset(), cached_lots_max=cached))
    assert (result.exhausted, "evicted" in result.reached) == (True, evicted)


@pytest.mark.parametrize("faults", [{"deadline"}, {"cancel", "retry"}, {"restart-prefill"}, {"duplicate"}, {"stall"}])
def test_what_is_settled_at_once_leaves_fewer_worlds_and_the_same_verdict(faults: set[str]) -> None:
    """One request, whole graph and reduced: nothing broken, the same reached, in fewer worlds."""
    bounds = replace(SHORT, faults=frozenset(faults), faults_max=len(faults))
    whole, settled = explore(bounds), explore(replace(bounds, settled=True))
    assert (whole.exhausted, whole.broken) == (settled.exhausted, settled.broken) == (True, ())
    assert settled.states < whole.states
    assert settled.reached == whole.reached


def test_nothing_is_settled_without_every_guard() -> None:
    """What commutes depends on the guards: a world that lacks some is not reduced, and it is said why."""
    with pytest.raises(SettingsError, match="every guard must be on"):
        Search(replace(LATE, settled=True))


def test_bytes_that_land_before_their_head_leak() -> None:
    """Where no order is promised, comparing heads is a probe: a misdirected write leaks with every guard on."""
    bounds = replace(CASES["stamp-at-read"].bounds, in_order=False)
    broken = explore(bounds, targets={"reads-own-bytes"}).broken
    assert "reads-own-bytes" in [way.name for way in broken]
