"""Each reduction of the search against the graph without it, on every configuration of two requests."""

import pytest
from msgspec.structs import replace

from kvfence.prove.bounds import FAULTS, Asked
from kvfence.prove.cases import TIGHT
from kvfence.prove.search import Search, explore
from tests.prove.graphs import unmatched

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

TWO = replace(TIGHT, requests=(Asked(max_tokens=1), Asked(max_tokens=1, tenant=1)))
ALIKE = replace(TIGHT, requests=(Asked(max_tokens=1), Asked(max_tokens=1)))
ONE = replace(TWO, requests=TWO.requests[:1])
PAIRS = (("deadline", "retry"), ("cancel", "retry"), ("retry", "restart-prefill"), ("deadline", "restart-prefill"))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_settled_waits_for_nobody(fault: str) -> None:
    """Two requests and one fault: every edge of the whole graph is an edge of the reduced one, with what it breaks."""
    _, missing = unmatched(replace(TWO, faults=frozenset({fault}), faults_max=1))
    assert not missing


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_what_is_settled_waits_for_nobody_beside_two_faults(pair: tuple[str, str]) -> None:
    """One request and two faults: the same."""
    _, missing = unmatched(replace(ONE, faults=frozenset(pair), faults_max=2))
    assert not missing


@pytest.mark.parametrize("fault", FAULTS)
def test_requests_that_are_alike_are_submitted_in_one_order(fault: str) -> None:
    """In any order there are twice as many worlds, less those in which nobody has asked; nothing else is reached."""
    bounds = replace(ALIKE, faults=frozenset({fault}), faults_max=1, exact=True)
    search = Search(bounds)
    one, both = search.run(), explore(replace(bounds, swapped=True))
    clients = search.model.tables.clients
    unasked = sum(not any(clients[world.clients].submitted) for world in search.seen)
    assert both.states == 2 * one.states - unasked
    assert (both.broken, both.reached, both.depth) == (one.broken, one.reached, one.depth)
