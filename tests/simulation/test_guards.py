"""Every guard has a fault under which its removal is found, and is then enough to stop it."""

import pytest

from kvfence.protocol.guards import GUARDS, Rules
from kvfence.sim.cases import CASES, SHARED, Case, first_harm


def test_every_guard_has_its_case() -> None:
    """A guard without a removal test fails here."""
    assert set(CASES) == set(GUARDS)


@pytest.mark.parametrize("name", GUARDS)
def test_removing_a_guard_is_found_and_adding_it_back_is_enough(name: str) -> None:
    """With its ``alone`` set away and its fault on, the harm is done without the guard and not with it."""
    case, alone = CASES[name], GUARDS[name].alone
    seed = first_harm(case, Rules.without(name, *alone))
    assert seed is not None, f"no seed met the fault of {name}"
    with_it = Rules.without(*alone) if alone else Rules.all()
    assert first_harm(case, with_it) is None


@pytest.mark.parametrize("name", GUARDS)
def test_with_all_others_on_removal_shows_or_is_redundant(name: str) -> None:
    """Taking one guard away breaks safety or a property of its own, unless others are named that stop it, too."""
    guard, case = GUARDS[name], CASES[name]
    shows = case.by_itself or case
    seed = first_harm(shows, Rules.without(name))
    if guard.redundant:
        assert seed is None
        assert set(guard.redundant) <= set(GUARDS)
        assert first_harm(case, Rules.without(name, *guard.redundant, *guard.alone)) is not None
    else:
        assert seed is not None, f"nothing broke without {name}"


def test_all_guards_together_stop_every_case() -> None:
    """Each fault, met by every guard: no property breaks, not only the case's own, with and without shared pages."""
    for name, case in CASES.items():
        for reuse, seeds in ((case.reuse, 4), (True, 1)):
            met = Case(frozenset(), case.faults, case.capacity, seeds=seeds, reuse=reuse)
            assert first_harm(met, Rules.all()) is None, name


@pytest.mark.parametrize("name", SHARED)
def test_shared_pages_need_the_guards_of_all_pages(name: str) -> None:
    """Where pages have several holders, these guards stand for all of them: without one a shared page is harmed."""
    case = SHARED[name]
    assert first_harm(case, Rules.without(name)) is not None
    assert first_harm(case, Rules.all()) is None
