"""A run that does not show what must be seen is a problem, and says which."""

from msgspec.structs import replace

from kvfence.incident.findings import RunFacts, SeedFindings, document, judge


def rejudge(found: SeedFindings, name: str, **changes: object) -> SeedFindings:
    """Judge the runs again with one of them changed."""
    runs = [replace(run, **changes) if run.name == name else run for run in found.runs.values()]
    return judge(found.seed, runs, found.sample)


def test_a_missing_leak_fails(found: SeedFindings) -> None:
    """26 of 27 is not enough."""
    assert "small_unguarded: 26 leaked, 27 expected" in rejudge(found, "small_unguarded", leaked=26).problems


def test_a_leak_with_all_guards_fails_a_check(found: SeedFindings) -> None:
    """A leak where guards are on is found by the first check, too."""
    problems = rejudge(found, "small_guarded", leaked=1).problems
    assert "check failed: the leak appears only with a small pool and the guards away" in problems


def test_a_false_alarm_fails(found: SeedFindings) -> None:
    """A marker alarm in a clean run is a problem."""
    assert "large_guarded: 1 marker alarms, none expected" in rejudge(found, "large_guarded", marker_alarms=1).problems


def test_too_little_readable_text_fails(found: SeedFindings) -> None:
    """With real text at least 20 leaks must be readable; without text nothing is asked."""
    assert any("readable in 19" in problem for problem in rejudge(found, "small_unguarded", text_markers=19).problems)
    assert rejudge(found, "small_unguarded", text_markers=20).problems == ()


def test_an_unclean_control_fails(found: SeedFindings) -> None:
    """The control must answer 400 to all."""
    assert any("control" in problem for problem in rejudge(found, "control", statuses={"200": 27}).problems)


def test_unanswered_tenants_fail(found: SeedFindings) -> None:
    """Requests that fit must be answered in every run."""
    assert any("not all answered" in p for p in rejudge(found, "large_guarded", others={"200": 29, "503": 1}).problems)


def test_one_bad_seed_spoils_the_document(found: SeedFindings) -> None:
    """A check passes only if it does for every seed."""
    bad = rejudge(found, "small_guarded", statuses={"200": 27})
    report = document([found, bad], 1.0, "simulation")
    assert not report["ok"]
    checks = report["checks"]
    assert isinstance(checks, list)
    assert {"name": "refusal at admission stops it", "pass": False} in checks


def test_facts_are_plain_data(found: SeedFindings) -> None:
    """Runs go into the document as they are."""
    assert all(isinstance(run, RunFacts) for run in found.runs.values())
