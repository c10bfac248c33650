"""What the runs have shown, as one document, and whether it is what must be seen.

Not for: playing runs (``runs.py``, ``simulated.py``) or showing the document (``cli/incident.py``, ``page.py``).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from kvfence.core.errors import CapacityError
from kvfence.incident.story import Sample
from kvfence.incident.workload import (
    CONTEXT_TOKENS,
    DECODE_PAGES,
    LARGE_PAGES,
    NUM_OVERSIZE,
    PAGE_SIZE,
    SMALL_PAGES,
)
from kvfence.protocol.admission import Capacity
from kvfence.runtime.capacity import check_capacity

TEXT_MARKERS_MIN = 20
"""Of 27 leaks this many must be readable: a small model does not copy every time."""

FOUR = ("small_unguarded", "small_guarded", "large_unguarded", "large_guarded")


class RunFacts(Struct, frozen=True):
    """One run in numbers.

    ``text_markers``: None where there is no text. ``tenants_read``: in how many answers each tenant's bytes were read.
    Units: pool_tokens of prefill; generated: leaks that read part of another's answer.
    """

    name: str
    seed: int
    pool_tokens: int
    memory_fraction: float
    guards: str
    statuses: dict[str, int]
    leaked: int
    oracle_leaks: int
    status_alarms: int
    marker_alarms: int
    text_markers: int | None
    amnesia: int | None
    too_fast: int | None
    tenants_read: dict[str, int]
    generated: int
    others: dict[str, int]
    wall_s: float
    cpu_s: float


class Check(Struct, frozen=True):
    """One statement and whether it holds."""

    name: str
    passed: bool


class SeedFindings(Struct, frozen=True):
    """All runs of one seed."""

    seed: int
    runs: dict[str, RunFacts]
    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    sample: Sample | None = None


def judge(seed: int, runs: Iterable[RunFacts], sample: Sample | None) -> SeedFindings:
    """Compare the runs of one seed with what must be seen."""
    facts = {run.name: run for run in runs}
    checks = _checks(facts)
    problems = [f"check failed: {check.name}" for check in checks if not check.passed]
    return SeedFindings(seed, facts, checks, (*problems, *_problems(facts)), sample)


def _checks(facts: dict[str, RunFacts]) -> tuple[Check, ...]:
    """The seven checks of the public toy reproduction."""
    small, guarded = facts["small_unguarded"], facts["small_guarded"]
    large, large_guarded, lowered = facts["large_unguarded"], facts["large_guarded"], facts["memory_fraction_lowered"]
    only_both = small.leaked > 0 and lowered.leaked > 0 and not (guarded.leaked + large.leaked + large_guarded.leaked)
    return (
        Check("the leak appears only with a small pool and the guards away", only_both),
        Check("every leaked response is HTTP 200", small.statuses == {"200": small.leaked}),
        Check("a test that looks at status and error frames alone passes", small.status_alarms == 0),
        Check("markers in the texts find every leak", small.marker_alarms == small.leaked == NUM_OVERSIZE),
        Check("refusal at admission stops it", guarded.leaked == 0 and guarded.statuses == {"400": NUM_OVERSIZE}),
        Check(
            "with a pool of at least the context the refusal is never reached", large.statuses == {"200": NUM_OVERSIZE}
        ),
        Check("a check at start, pool >= context, finds the bad configuration beforehand", start_check_finds_it()),
    )


def start_check_finds_it() -> bool:
    """Does the check that ``serve`` makes at start refuse the small pool, and it alone?"""
    refused = [_is_refused(pages) for pages in (SMALL_PAGES, LARGE_PAGES)]
    return refused == [True, False]


def _is_refused(prefill_pages: int) -> bool:
    try:
        check_capacity(Capacity(PAGE_SIZE, CONTEXT_TOKENS, prefill_pages, DECODE_PAGES))
    except CapacityError:
        return True
    return False


def _problems(facts: dict[str, RunFacts]) -> Iterable[str]:
    small = facts["small_unguarded"]
    for name, wanted in (*zip(FOUR, (NUM_OVERSIZE, 0, 0, 0), strict=True), ("memory_fraction_lowered", NUM_OVERSIZE)):
        if facts[name].leaked != wanted:
            yield f"{name}: {facts[name].leaked} leaked, {wanted} expected"
    control = facts["control"]
    if control.leaked or control.statuses != {"400": NUM_OVERSIZE}:
        yield f"control: one process answers 400 and leaks nothing; seen: {control.statuses}, {control.leaked} leaked"
    if small.oracle_leaks != NUM_OVERSIZE:
        yield f"the oracle sees {small.oracle_leaks} leaks, {NUM_OVERSIZE} expected"
    if small.text_markers is not None and small.text_markers < TEXT_MARKERS_MIN:
        yield f"foreign text is readable in {small.text_markers} answers, at least {TEXT_MARKERS_MIN} expected"
    for name in ("small_guarded", "large_unguarded", "large_guarded", "control"):
        if facts[name].marker_alarms:
            yield f"{name}: {facts[name].marker_alarms} marker alarms, none expected"
    for run in facts.values():
        if set(run.others) - {"200"}:
            yield f"{run.name}: requests that fit were not all answered: {run.others}"


def document(seeds: Sequence[SeedFindings], seconds: float, kind: str) -> dict[str, object]:
    """Give the one JSON document. Numbers at the top are the first seed's; ``seeds`` has every seed's."""
    first = seeds[0]
    small = first.runs["small_unguarded"]
    passed = {
        check.name: all(c.passed for each in seeds for c in each.checks if c.name == check.name)
        for check in first.checks
    }
    return {
        "kind": kind,
        "ok": not any(each.problems for each in seeds),
        "problems": [f"seed {each.seed}: {problem}" for each in seeds for problem in each.problems],
        "leaked": {name: first.runs[name].leaked for name in FOUR},
        "status_alarms": small.status_alarms,
        "marker_alarms": small.marker_alarms,
        "text_markers": small.text_markers,
        "text_markers_why": "" if small.text_markers is not None else "the protocol alone has no text",
        "oracle_leaks": small.tenants_read,
        "checks": [{"name": name, "pass": value} for name, value in passed.items()],
        "runs": list(first.runs.values()),
        "control": first.runs["control"],
        "memory_fraction_lowered": {
            "leaked": first.runs["memory_fraction_lowered"].leaked,
            "before": _pool(first.runs["large_unguarded"]),
            "after": _pool(first.runs["memory_fraction_lowered"]),
        },
        "story": first.sample,
        "seed": first.seed,
        "seeds": [{"seed": each.seed, **_numbers(each)} for each in seeds],
        "seconds": round(seconds, 1),
    }


def _pool(run: RunFacts) -> dict[str, object]:
    return {"pool_tokens": run.pool_tokens, "memory_fraction": run.memory_fraction, "leaked": run.leaked}


def _numbers(findings: SeedFindings) -> dict[str, object]:
    small = findings.runs["small_unguarded"]
    return {
        "leaked": {name: run.leaked for name, run in findings.runs.items()},
        "status_alarms": small.status_alarms,
        "marker_alarms": {name: run.marker_alarms for name, run in findings.runs.items()},
        "text_markers": small.text_markers,
        "ok": not findings.problems,
    }


def count_tenants(slots: Iterable[Iterable[str]]) -> dict[str, int]:
    """Count in how many leaks each tenant's bytes were read."""
    return dict(sorted(Counter(tenant for each in slots for tenant in each).items()))
