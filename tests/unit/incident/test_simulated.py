"""The protocol alone shows the incident's numbers, and each of the two causes alone shows nothing."""

import pytest

from kvfence.incident.findings import SeedFindings, document
from kvfence.incident.oracle import read_traces
from kvfence.incident.scenarios import CONTROL, LARGE_UNGUARDED, SMALL_GUARDED, SMALL_UNGUARDED
from kvfence.incident.simulated import simulate


def test_everything_expected_is_found(found: SeedFindings) -> None:
    """27 leaks where the guards are away and the pool is small, none elsewhere; all checks pass."""
    report = document([found], 1.0, "simulation")
    assert report["ok"], report["problems"]
    assert report["leaked"] == {"small_unguarded": 27, "small_guarded": 0, "large_unguarded": 0, "large_guarded": 0}
    assert (report["status_alarms"], report["marker_alarms"]) == (0, 27)
    checks = report["checks"]
    assert isinstance(checks, list)
    assert len(checks) == 7


@pytest.mark.parametrize("seed", [2, 3])
def test_other_seeds_show_the_same(seed: int) -> None:
    """The numbers do not hang on one seed."""
    assert simulate(seed).problems == ()


def test_both_causes_are_needed(found: SeedFindings) -> None:
    """A small pool with all guards refuses; a large pool without them serves; neither leaks."""
    assert found.runs[SMALL_GUARDED.name].statuses == {"400": 27}
    assert found.runs[LARGE_UNGUARDED.name].statuses == {"200": 27}
    assert found.runs[CONTROL.name].statuses == {"400": 27}


def test_parts_of_answers_leak_too(found: SeedFindings) -> None:
    """What decode had written for other tenants is read as well as their prompts."""
    small = found.runs[SMALL_UNGUARDED.name]
    assert small.generated > 0
    assert len(small.tenants_read) > 5


def test_the_story_has_seven_steps_with_pages_of_the_trace(found: SeedFindings) -> None:
    """One page was written for the request, the others hold other tenants' bytes, and guards that saw it are named."""
    sample = found.sample
    assert sample is not None
    assert [step.number for step in sample.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [row.foreign for row in sample.pages] == [False] + [True] * 7
    assert sample.pages[0].shows == sample.pages[0].wanted
    assert all(row.wanted == "nothing" for row in sample.pages[1:])
    assert all("tenant-" in row.after for row in sample.pages[1:])
    assert "stamp-at-adopt@decode" in sample.steps[4].text
    assert str(sample.pages[3].page) in sample.steps[0].text


def test_an_empty_trace_says_nothing() -> None:
    """No steps, no readings."""
    from kvfence.incident.oracle import Traces

    assert read_traces(Traces(8, (), (), ())) == {}
