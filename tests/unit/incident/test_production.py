"""The incident at its own proportions: what leaks, and what each remedy alone changes."""

import pytest

from kvfence.incident.production import PRODUCTION, RUNS, Findings, Scale, document, simulate_production

SMALL = Scale(
    4, 1024, 664, 1992, 1992, num_oversize=12, num_ordinary=30, ordinary_max=120, num_long=3, num_warm=8, warm=240
)
"""The production scale's proportions in a thousandth of its tokens."""


@pytest.fixture(scope="module")
def found() -> Findings:
    """All runs of one seed."""
    return simulate_production(1, SMALL)


def test_the_scale_is_the_incidents() -> None:
    """The sizes of the post-mortem: the pool holds less than a context, decode's about two; 155 prompts lie between."""
    assert (PRODUCTION.context, PRODUCTION.prefill, PRODUCTION.page_size) == (1_048_576, 681_280, 64)
    assert (PRODUCTION.num_oversize, PRODUCTION.decode) == (155, 2_040_000)
    assert PRODUCTION.capacity(larger=False).prefill_pages == 10_645


def test_unguarded_all_leak_and_zeroing_alone_makes_them_wrong(found: Findings) -> None:
    """Every prompt over the pool is answered with 200 from pages that nobody wrote for it."""
    assert found.problems == ()
    runs = {run.name: run for run in found.runs}
    assert (runs["as it was"].leaked, runs["as it was"].statuses) == (12, {"200": 12})
    zeroed = runs["zero on release"]
    assert (zeroed.leaked, zeroed.wrong, zeroed.statuses) == (0, 12, {"200": 12})


@pytest.mark.parametrize("name", [run.name for run in RUNS if not run.wrong])
def test_each_remedy_alone_is_enough(found: Findings, name: str) -> None:
    """Nothing leaks, nothing is answered from foreign pages, and prompts that fit are answered as before."""
    run = next(each for each in found.runs if each.name == name)
    assert (run.leaked, run.wrong, run.others_wrong) == (0, 0, 0)
    assert set(run.others) == {"200"}


def test_without_the_engines_mistake_nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs can fail: an engine that keeps its refusal shows none of what must be seen."""
    monkeypatch.setattr("kvfence.incident.production.placeholder_on_refusal", lambda capacity: lambda event: event)
    problems = simulate_production(1, SMALL).problems
    assert any(problem.startswith("as it was") for problem in problems)
    assert any(problem.startswith("zero on release") for problem in problems)


def test_the_story_is_told_of_large_pages(found: Findings) -> None:
    """The seven steps of the small incident, with lists that stay short."""
    assert found.story is not None
    assert len(found.story.steps) == 7
    assert "in all" in found.story.steps[0].text
    assert len(found.story.pages) == 12
    assert [row.foreign for row in found.story.pages] == [False] + [True] * 11


@pytest.mark.incident
def test_at_the_incidents_own_sizes() -> None:
    """155 leaked unguarded, none with any remedy, 155 wrong answers where pages are only zeroed; in a minute or so."""
    found = simulate_production(2)
    assert found.problems == ()
    report = document(found, 1.0)
    assert report["leaked"] == {run.name: 155 if run.leaked else 0 for run in RUNS}
    assert report["wrong"] == {run.name: 155 if run.wrong else 0 for run in RUNS}
