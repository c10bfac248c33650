"""What the search sees is what was proved: every conjunct on each world, every edge a few abstract actions or none."""

import pytest

from kvfence.protocol.guards import Rules
from kvfence.prove.bounds import Asked, Bounds
from kvfence.prove.invariant import refinement
from kvfence.prove.invariant.compared import COMPARED, walk
from kvfence.prove.invariant.rules import ACTIONS

QUICK = {
    "one request, nothing wrong": (10_000, 1, True),
    "broken and misdirected writes": (10_000, 9, True),
    "network, time and people": (250, 9, False),
    "checked at receipt": (250, 9, False),
    "two requests": (250, 9, False),
    "a new session": (120, 9, False),
    "prefill dies": (250, 9, False),
}
"""By walk: worlds at most, which edges, whether that is all. The judges' run goes through all of them."""


@pytest.mark.parametrize("name", QUICK)
def test_worlds_and_edges_are_those_proved(name: str) -> None:
    """Every world keeps every conjunct, and every edge that is looked at is explained."""
    worlds_max, every, whole = QUICK[name]
    found = walk(name, COMPARED[name], worlds_max=worlds_max, every=every)
    assert (found.broken, found.unexplained, found.whole) == ((), (), whole)
    assert found.compared
    assert found.used


def test_the_walk_reaches_adoption_and_passes() -> None:
    """An edge is explained by what happens in it: pages granted, landed, adopted, read and freed."""
    found = walk("", COMPARED["one request, nothing wrong"], worlds_max=10_000)
    assert {"grant-page", "start", "post", "land-head", "land-tail", "send", "adopt", "emit", "end-running"} <= {
        *found.used
    }


def test_a_rebuilt_session_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence by a new session is tied to ``step``: without it in the proof, its edge stays unexplained."""
    bounds = COMPARED["a new session"]
    assert walk("", bounds, worlds_max=120).used["rebuild-session"]
    monkeypatch.setattr(refinement, "ACTIONS", tuple(a for a in ACTIONS if a.name != "rebuild-session"))
    monkeypatch.setattr(refinement, "EXPANSIONS_MAX", 10)
    assert any(edge.startswith("repair") for edge in walk("", bounds, worlds_max=120).unexplained)


def test_what_decode_has_forgotten_is_over() -> None:
    """Where decode's successor no longer knows an attempt, prefill still does: what it lets go of then is explained."""
    found = walk("", COMPARED["decode dies"], worlds_max=400, every=5)
    assert found.used["restart"]
    assert found.used["fence-start"]
    assert not found.unexplained


def test_a_missing_action_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the proof had no adoption, edges of the search would stay unexplained."""
    monkeypatch.setattr(refinement, "ACTIONS", tuple(action for action in ACTIONS if action.name != "adopt"))
    monkeypatch.setattr(refinement, "EXPANSIONS_MAX", 30)
    found = walk("", COMPARED["one request, nothing wrong"], worlds_max=10_000)
    assert any(edge.startswith("verify") for edge in found.unexplained)


def test_a_world_without_a_guard_breaks_its_conjunct() -> None:
    """Without quarantine a page is free while a write to it may land, and the conjunct says so on that world."""
    faults = frozenset({"deadline"})
    rules = Rules.without("quarantine-on-revoke")
    bounds = Bounds(requests=(Asked(),), exact=True, faults=faults, faults_max=1, rules=rules)
    assert "no-stray-write" in walk("", bounds, worlds_max=400, every=10**9).broken
