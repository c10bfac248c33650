"""The larger worlds: exhausted with every guard, and the whole matrix."""

import pytest
from msgspec.structs import replace

from kvfence.protocol.guards import GUARDS
from kvfence.prove.bounds import FAULTS, Asked, Bounds
from kvfence.prove.cases import CASES, HAZARDS, MISTAKES, TIGHT
from kvfence.prove.matrix import guard_row, hazard_row, mistake_row
from kvfence.prove.search import Limits, explore

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

LIMITS = Limits(cpu_s_max=1800, memory_max=8 * 10**9)
THREE = replace(TIGHT, requests=tuple(Asked(max_tokens=1, tenant=number) for number in range(3)), settled=True)
ONE_BY_ONE = replace(THREE, asking_max=1)
"""Three clients, each of which asks when the one before was answered; what it was given up with may still be there."""

PAIRS = {
    ("cancel", "retry"): 11_252,
    ("deadline", "retry"): 14_732,
    ("retry", "restart-prefill"): 41_431,
    ("cancel", "restart-prefill"): 210_350,
    ("deadline", "restart-prefill"): 314_341,
}
"""Abort (by the client, or by time), retry, restart; and how many settled worlds there are."""


def _with(bounds: Bounds, *faults: str) -> Bounds:
    return replace(bounds, faults=frozenset(faults), faults_max=len(faults))


def test_two_requests_and_every_fault_once() -> None:
    """What ``kvfence prove explore`` searches is exhausted, breaks nothing, and is as large as it was."""
    result = explore(replace(TIGHT, faults=frozenset(FAULTS), faults_max=1), LIMITS)
    assert (result.exhausted, result.broken, result.states) == (True, (), 1_111_045)


@pytest.mark.parametrize(
    ("pair", "states"), [(("cancel", "retry"), 29_282), (("retry", "restart-prefill"), 47_268)], ids=str
)
def test_two_requests_and_a_pair_of_faults(pair: tuple[str, str], states: int) -> None:
    """Two requests at once with two faults together break nothing, in as many settled worlds as there were."""
    result = explore(_with(replace(THREE, requests=THREE.requests[:2]), *pair), LIMITS)
    assert (result.exhausted, result.broken, result.states) == (True, (), states)


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_three_requests_one_by_one_and_a_pair_of_faults(pair: tuple[str, str]) -> None:
    """Three requests, one at a time, with an abort, a retry or a restart together break nothing."""
    result = explore(_with(ONE_BY_ONE, *pair), LIMITS)
    assert (result.exhausted, result.broken, result.states) == (True, (), PAIRS[pair])


def test_three_requests_one_by_one_and_abort_retry_restart_together() -> None:
    """All three faults in one run break nothing; where 30 minutes or 8 GB end it first, it is not called exhausted."""
    result = explore(_with(ONE_BY_ONE, "cancel", "retry", "restart-prefill"), LIMITS)
    assert result.broken == ()
    assert result.exhausted != bool(result.bound)
    assert result.states > PAIRS["cancel", "restart-prefill"]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_three_requests_at_once_and_a_pair_of_faults_are_unknown(pair: tuple[str, str]) -> None:
    """All three at once are too many worlds: nothing is broken in the nearest of them, and nobody says exhausted."""
    result = explore(_with(THREE, *pair), Limits(states_max=50_000))
    assert (result.exhausted, result.bound, result.broken) == (False, "50000 states", ())
    assert result.states >= 50_000


@pytest.mark.parametrize("fault", FAULTS)
def test_two_requests_side_by_side_and_one_fault(fault: str) -> None:
    """With room for both at once, each fault alone breaks nothing."""
    result = explore(Bounds(faults=frozenset({fault}), faults_max=1), LIMITS)
    assert (result.exhausted, result.broken) == (True, ())


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard(name: str) -> None:
    """Found when away, enough when back, and needed or named as redundant."""
    assert guard_row(name).ok


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.id)
def test_every_known_mistake(mistake: "object") -> None:
    """Refuted by a counterexample that its guards then stop, or said not to be expressible."""
    assert mistake_row(mistake).ok  # type: ignore[arg-type]


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.name)
def test_every_hazard_has_a_smallest_answer(hazard: "object") -> None:
    """Some set of guards suffices, and none is left untold."""
    row = hazard_row(hazard)  # type: ignore[arg-type]
    assert row.sufficient
    assert row.unknown == 0


def test_a_limit_of_stamps_is_shown_and_not_hidden() -> None:
    """A write that goes astray before its victim's own head has landed leaks with every guard on, as documented."""
    bounds = replace(CASES["stamp-at-read"].bounds, faults=frozenset({"misdirect-early"}))
    broken = explore(bounds, targets={"reads-own-bytes"}).broken
    assert "reads-own-bytes" in [way.name for way in broken]
