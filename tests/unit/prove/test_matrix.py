"""Guards taken away and put back by search; engines as shipped; the page."""

import pytest

from kvfence.protocol.guards import GUARDS
from kvfence.prove import matrix
from kvfence.prove.cases import CASES, MISTAKES
from kvfence.prove.engines import ENGINES
from kvfence.prove.examine import examine
from kvfence.prove.matrix import HazardRow, Matrix, guard_row, mistake_row
from kvfence.prove.page import matrix_page
from kvfence.prove.search import Limits
from tests.house.source import ROOT

QUICK = (
    "fits",
    "refusal-is-final",
    "count-matches",
    "stamp-at-adopt",
    "digest-matches",
    "layout-agrees",
    "batch-bound",
)
"""The others take seconds each: `make prove` runs them."""


def test_every_guard_has_its_case() -> None:
    """A guard without a world in which its fault can harm fails here."""
    assert set(CASES) == set(GUARDS)


@pytest.mark.parametrize("name", QUICK)
def test_a_guard_is_found_when_away_and_enough_when_back(name: str) -> None:
    """Alone it is the last line; with all others on its removal shows, or others are named that stand in."""
    row = guard_row(name)
    assert row.ok
    assert row.trace


def test_every_known_mistake_has_its_world_or_a_reason() -> None:
    """M1 to M15 are each searched for, or it is said why no world here can make them and what covers them."""
    assert [mistake.id for mistake in MISTAKES] == [f"M{number}" for number in range(1, 16)]
    for mistake in MISTAKES:
        assert (mistake.case is None) == bool(mistake.inexpressible)
        assert bool(mistake.inexpressible) <= bool(mistake.elsewhere)


def test_what_a_guard_in_an_engine_covers_has_its_test() -> None:
    """A mistake that only a plug-in can meet names the plug-in's test, and that test exists."""
    named = [mistake.elsewhere.split("::") for mistake in MISTAKES if "::" in mistake.elsewhere]
    assert len(named) == 2
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_as_shipped_lets_its_findings_through(name: str) -> None:
    """Each finding of a released engine is come upon with the guards that it has."""
    assert [each.finding.name for each in examine(ENGINES[name]) if each.story is None] == []


def test_every_fact_of_an_engine_has_a_source() -> None:
    """Where each guard of a set was seen, and whether the engine was run or read."""
    facts = [fact for engine in ENGINES.values() for fact in engine.facts]
    assert all(fact.source and fact.how in ("ran", "read") for fact in facts)


def test_the_page_tells_the_stories() -> None:
    """The page holds each guard's story, and no reference to anywhere else."""
    page = matrix_page(Matrix((guard_row("fits"),), (), ()))
    assert "without fits" in page
    assert "refusal-arrives" in page
    assert "://" not in page


@pytest.mark.parametrize(("sufficient", "unknown", "ok"), [((("fits",),), 0, True), ((), 0, False), (((),), 1, False)])
def test_a_hazard_without_an_answer_is_not_all_right(
    sufficient: tuple[tuple[str, ...], ...], unknown: int, ok: bool
) -> None:
    """Where no set of guards is enough, or one was not judged, the whole matrix is not as expected."""
    assert Matrix((), (HazardRow("", ("fits",), sufficient, unknown),), ()).ok is ok


def test_what_a_limit_left_untold_is_not_broken() -> None:
    """A matrix is undecided where all that is missing was ended by a limit; a hazard without an answer is not that."""
    untold, unanswered = HazardRow("", ("fits",), ((),), 1), HazardRow("", ("fits",), (), 0)
    assert Matrix((), (untold,), ()).undecided
    assert not Matrix((), (untold, unanswered), ()).undecided
    assert not Matrix((), (), ()).undecided


def test_a_search_that_a_limit_ends_makes_its_row_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard and a mistake whose searches end early are neither found nor refuted, and say so."""
    monkeypatch.setattr(matrix, "LIMITS", Limits(states_max=1))
    guard, mistake = guard_row("fits"), mistake_row(MISTAKES[0])
    assert (guard.ok, guard.undecided, mistake.ok, mistake.undecided) == (False, True, False, True)
