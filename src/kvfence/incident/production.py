"""The incident at its own scale: a context of 1,048,576 tokens, a prefill pool of 681,280, 155 prompts between the two.

Played once for each remedy that suffices alone, with all guards, with none, and with pages zeroed on release alone.
Source: the post-mortem's sizes, counts and remedies (``docs/incident.md``).

Not for: playing a run (``deployment.py``) or showing it (``cli/incident_scale.py``).
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import CapacityError
from kvfence.driver.mutants import INCIDENT_LACKS, placeholder_on_refusal
from kvfence.incident.deployment import Ask, Deployment, Outcome
from kvfence.incident.oracle import Traces, find_leaks, read_traces
from kvfence.incident.simulated import StepLog
from kvfence.incident.story import Sample, Telling, tell
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.runtime.capacity import check_capacity


class Scale(Struct, frozen=True):
    """The sizes of a deployment and its traffic.

    Units: context, prefill, decode and larger in tokens; larger: the prefill pool that was the remedy. num_warm
    requests of warm tokens come first, together, so that every page has been somebody's; num_long others are long and
    fit. concurrency: clients at once.
    """

    page_size: int = 64
    context: int = 1_048_576
    prefill: int = 681_280
    decode: int = 2_040_000
    larger: int = 2_040_000
    num_oversize: int = 155
    num_ordinary: int = 400
    ordinary_max: int = 120_000
    num_long: int = 12
    num_warm: int = 34
    warm: int = 59_900
    concurrency: int = 34

    def capacity(self, *, larger: bool) -> Capacity:
        """Give the pools in pages."""
        prefill = self.larger if larger else self.prefill
        return Capacity(self.page_size, self.context, prefill // self.page_size, self.decode // self.page_size)


PRODUCTION = Scale()

ANSWER_MIN, ANSWER_MAX = 3, 12
"""Tokens of an answer: short, because each reads all of its prompt's pages again."""


class Remedy(Struct, frozen=True):
    """One run: which of the incident's missing guards are there again, or what else was changed.

    ``ends``: what each of the prompts over the pool must be answered. ``wrong``: how many of those answers are computed
    from pages that were not written for them. ``leaked``: from other tenants' bytes.
    """

    name: str
    guards: tuple[str, ...] = ()
    all_guards: bool = False
    larger: bool = False
    zero: bool = False
    ends: str = "200"
    wrong: bool = False
    leaked: bool = False

    @property
    def rules(self) -> Rules:
        """The guards of this run."""
        absent = [name for name in INCIDENT_LACKS if name not in self.guards]
        return Rules.all() if self.all_guards else Rules.without(*absent)


UNGUARDED = Remedy("as it was", wrong=True, leaked=True)
RUNS = (
    UNGUARDED,
    Remedy("refusal at the gateway", ("fits@gateway",), ends="400"),
    Remedy("refusal kept at the queue", ("refusal-is-final",), ends="400"),
    Remedy("count", ("count-matches",), ends="count_mismatch"),
    Remedy("stamps at adoption", ("stamp-at-adopt",), ends="stamp_mismatch"),
    Remedy("stamps at every read", ("stamp-at-read",), ends="stamp_mismatch"),
    Remedy("larger pool", larger=True),
    Remedy("all guards", all_guards=True, ends="400"),
    Remedy("zero on release", zero=True, wrong=True),
)

STATUS = {EndReason.LENGTH: "200", EndReason.DOES_NOT_FIT: "400"}


class RunFacts(Struct, frozen=True):
    """One run in numbers.

    ``statuses``, ``others``: of the prompts over the pool, and of all others. ``leaked``: answers given as HTTP 200 of
    which a token was computed from another tenant's bytes; ``wrong``: from any page not written for them;
    ``others_wrong``: the same of all other answers. ``tenants_read``: whose bytes leaked answers read.
    Units: pages_foreign, pages_zeroed: the most that one of the answers over the pool read.
    """

    name: str
    guards: tuple[str, ...]
    prefill_tokens: int
    statuses: dict[str, int]
    leaked: int
    wrong: int
    others: dict[str, int]
    others_wrong: int
    pages_foreign: int
    pages_zeroed: int
    tenants_read: int
    sessions_rebuilt: int
    seconds: float


class Findings(Struct, frozen=True):
    """All runs, what of them is not what must be seen, and one leaked answer told."""

    seed: int
    scale: Scale
    runs: tuple[RunFacts, ...]
    checks: dict[str, bool]
    problems: tuple[str, ...]
    story: Sample | None


def simulate_production(
    seed: int, scale: Scale = PRODUCTION, told: Callable[[RunFacts], None] = lambda _: None
) -> Findings:
    """Play every run of one seed and judge them; ``told``: hears of each as it ends."""
    asks = draw_traffic(seed, scale)
    runs = []
    for remedy in RUNS:
        runs.append(_play(remedy, asks, scale))
        told(runs[-1])
    problems = [problem for remedy, run in zip(RUNS, runs, strict=True) for problem in _problems(remedy, run, scale)]
    checks = _checks(runs, scale)
    problems += [f"check failed: {name}" for name, passed in checks.items() if not passed]
    return Findings(seed, scale, tuple(runs), checks, tuple(problems), _story(asks, scale))


# ---- who asks


def draw_traffic(seed: int, scale: Scale) -> tuple[Ask, ...]:
    """Draw all requests of a run: first those that fill decode's pool, then the others, in a drawn order."""
    rng = random.Random(seed)
    warm = [scale.warm] * scale.num_warm
    long = [rng.randint(scale.prefill // 2, scale.prefill) for _ in range(scale.num_long)]
    ordinary = [int(rng.triangular(64, scale.ordinary_max, 64)) for _ in range(scale.num_ordinary)]
    most = scale.context - ANSWER_MAX
    over = [rng.randint(scale.prefill + 1, most) for _ in range(scale.num_oversize)]
    rest = [("long", n) for n in long] + [("ordinary", n) for n in ordinary] + [("over", n) for n in over]
    rng.shuffle(rest)
    drawn = [*(("warm", n) for n in warm), *rest]
    counts: Counter[str] = Counter()
    asks = []
    for number, (kind, num_tokens) in enumerate(drawn, 1):
        counts[kind] += 1
        name = f"{kind}-{counts[kind]:03d}"
        tenant = name if kind in ("over", "long") else f"tenant-{rng.randint(1, 60):02d}"
        asks.append(Ask(number, name, tenant, num_tokens, rng.randint(ANSWER_MIN, ANSWER_MAX)))
    return tuple(asks)


def is_over(ask: Ask, scale: Scale) -> bool:
    """Is a prompt larger than prefill's pool of the incident?"""
    return ask.num_tokens > scale.prefill


# ---- one run


def _play(remedy: Remedy, asks: Sequence[Ask], scale: Scale) -> RunFacts:
    began = time.monotonic()
    capacity = scale.capacity(larger=remedy.larger)
    rewrites = (placeholder_on_refusal(capacity),)
    deployment = Deployment(remedy.rules, capacity, rewrites, zero_on_release=remedy.zero)
    deployment.run(asks, scale.concurrency)
    outcomes = deployment.outcomes
    over = [outcomes[ask.name] for ask in asks if is_over(ask, scale)]
    others = [outcomes[ask.name] for ask in asks if not is_over(ask, scale)]
    leaked = [outcome for outcome in over if outcome.reason is EndReason.LENGTH and outcome.tenants]
    return RunFacts(
        name=remedy.name,
        guards=("all",) if remedy.all_guards else remedy.guards,
        prefill_tokens=capacity.prefill_pages * scale.page_size,
        statuses=_statuses(over),
        leaked=len(leaked),
        wrong=_num_wrong(over),
        others=_statuses(others),
        others_wrong=_num_wrong(others),
        pages_foreign=max((outcome.foreign for outcome in over), default=0),
        pages_zeroed=max((outcome.zeroed for outcome in over), default=0),
        tenants_read=len(frozenset().union(*(outcome.tenants for outcome in leaked))),
        sessions_rebuilt=deployment.num_rebuilt - 1,
        seconds=round(time.monotonic() - began, 1),
    )


def _statuses(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count HTTP statuses, or where an answer ends in an error, its reason."""
    reasons = (outcome.reason for outcome in outcomes)
    names = (STATUS.get(reason, reason.value) if reason is not None else "none" for reason in reasons)
    return dict(sorted(Counter(names).items()))


def _num_wrong(outcomes: Sequence[Outcome]) -> int:
    return sum(o.reason is EndReason.LENGTH and bool(o.foreign or o.zeroed) for o in outcomes)


# ---- what must be seen


def _problems(remedy: Remedy, run: RunFacts, scale: Scale) -> Iterator[str]:
    number = scale.num_oversize
    wanted = (number if remedy.leaked else 0, number if remedy.wrong else 0)
    if run.statuses != {remedy.ends: number}:
        yield f"{run.name}: {run.statuses} answers over the pool, {number} x {remedy.ends} expected"
    if (run.leaked, run.wrong) != wanted:
        yield f"{run.name}: {run.leaked} leaked and {run.wrong} wrong, {wanted[0]} and {wanted[1]} expected"
    if set(run.others) != {"200"} or run.others_wrong:
        yield f"{run.name}: prompts that fit were not all answered right: {run.others}, {run.others_wrong} wrong"


def _checks(runs: Sequence[RunFacts], scale: Scale) -> dict[str, bool]:
    by_name = {run.name: run for run in runs}
    number, small = scale.num_oversize, by_name[UNGUARDED.name]
    alone = [by_name[r.name] for r in RUNS if not r.leaked and not r.zero and not r.all_guards]
    zeroed = by_name["zero on release"]
    return {
        f"unguarded, all {number} answers over the pool are HTTP 200 with other tenants' bytes in them": (
            small.leaked == number and small.statuses == {"200": number}
        ),
        "each remedy stops it alone": all(run.leaked == run.wrong == 0 for run in alone),
        "with all guards every client hears 400": by_name["all guards"].statuses == {"400": number},
        f"zeroing on release alone gives {number} wrong answers with HTTP 200": (
            zeroed.wrong == number and zeroed.leaked == 0 and zeroed.statuses == {"200": number}
        ),
        "a check at start, pool >= context, finds the bad configuration beforehand": start_check_finds_it(scale),
    }


def start_check_finds_it(scale: Scale) -> bool:
    """Does the check that ``serve`` makes at start refuse the small pool, and it alone?"""
    return [_is_refused(scale.capacity(larger=larger)) for larger in (False, True)] == [True, False]


def _is_refused(capacity: Capacity) -> bool:
    try:
        check_capacity(capacity)
    except CapacityError:
        return True
    return False


# ---- the story


PAGES_TOLD = 12
"""Of a leaked request's pages so many are told one by one."""


def _story(asks: Sequence[Ask], scale: Scale) -> Sample | None:
    """Play the beginning once more with everything recorded, and tell of its leak as the small incident does."""
    capacity = scale.capacity(larger=False)
    log = StepLog()
    deployment = Deployment(UNGUARDED.rules, capacity, (placeholder_on_refusal(capacity),), stepper=log.step)
    over = next(ask for ask in asks if is_over(ask, scale))
    told = [replace(ask, number=number) for number, ask in enumerate([*asks[: scale.num_warm], over], 1)]
    deployment.run(told, scale.concurrency)
    steps = log.steps
    roles = (tuple(steps[role]) for role in ("gateway", "prefill", "decode"))
    readings = read_traces(Traces(scale.page_size, *roles))
    tenants = {ask.name: ask.tenant for ask in told}
    leaks = [leak for leak in find_leaks(readings, tenants) if leak.request == over.name]
    if not leaks:
        return None
    leak = leaks[0]
    pages, seven = tell(Telling(readings[leak.attempt], readings, tenants, leak))
    source = max(leak.slots, key=lambda tenant: leak.slots[tenant])
    return Sample(leak.request, str(leak.attempt), "", "", source, (), pages[:PAGES_TOLD], seven)


def document(found: Findings, seconds: float) -> dict[str, object]:
    """Give the one JSON document."""
    return {
        "kind": "production scale, simulated",
        "ok": not found.problems,
        "problems": found.problems,
        "scale": found.scale,
        "leaked": {run.name: run.leaked for run in found.runs},
        "wrong": {run.name: run.wrong for run in found.runs},
        "checks": [{"name": name, "pass": passed} for name, passed in found.checks.items()],
        "runs": found.runs,
        "story": found.story,
        "seed": found.seed,
        "seconds": round(seconds, 1),
    }
