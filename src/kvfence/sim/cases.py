"""Under which fault the removal of each guard shows, and as what.

Not for: running many of them (``judge.py``).
"""

from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from kvfence.driver.loop import Rewrite, Stepper
from kvfence.driver.mutants import placeholder_on_refusal
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.step import step
from kvfence.protocol.transitions import Fence
from kvfence.sim.campaign import WIDE
from kvfence.sim.faults import Faults
from kvfence.sim.pieces import stray_in_pieces
from kvfence.sim.process import Setup
from kvfence.sim.shrink import finish
from kvfence.sim.workload import draw_families, draw_requests
from kvfence.sim.world import World

ROOMY = Capacity(page_size=4, context_tokens=24, prefill_pages=6, decode_pages=9)
"""Every request that fits the context fits both pools."""

CRAMPED = Capacity(page_size=4, context_tokens=24, prefill_pages=3, decode_pages=9)
"""The incident's mistake: prefill's pool is smaller than the context."""


class Case(Struct, frozen=True):
    """One guard's fault.

    ``harm``: the properties of which its removal breaks one; empty: any. ``seeds``: enough to meet the fault.
    ``reuse``: prompts begin alike, and their pages are shared.
    ``by_itself``: the case that shows its removal with every other guard on, where it is another one.
    """

    harm: frozenset[str]
    faults: Faults = Faults()
    capacity: Capacity = ROOMY
    fence: Fence = Fence.PEER_EXIT
    rewrites: tuple[Callable[[Capacity], Rewrite], ...] = ()
    engine_pages: int | None = None
    seeds: int = 20
    start: int = 0
    reuse: bool = False
    play: Callable[[Rules], World] | None = None
    by_itself: "Case | None" = None


def harm(*names: str) -> frozenset[str]:
    """The properties that break."""
    return frozenset(names)


LEAK = harm("reads-own-bytes")
CUTS = Faults(cancel=0.2, deadline=0.1, duplicate=0.3, lose=0.1)
DEATHS = Faults(kill_prefill=0.2, kill_decode=0.2, kill_gateway=0.1, duplicate=0.5, lose=0.1)

TOLD = harm("refusal-arrives")


def shy_engine(capacity: Capacity) -> Rewrite:
    """An engine that takes less of a prompt than its pool holds, and says so only by a placeholder."""
    return placeholder_on_refusal(replace(capacity, prefill_pages=SHY_PAGES))


SHY_PAGES = 3
SHY = Case(TOLD, rewrites=(shy_engine,), engine_pages=SHY_PAGES)
PLACEHOLDER = Case(LEAK, capacity=CRAMPED, rewrites=(placeholder_on_refusal,))

CASES: dict[str, Case] = {
    "fits": Case(TOLD, capacity=CRAMPED),
    "refusal-is-final": replace(PLACEHOLDER, by_itself=SHY),
    "count-matches": PLACEHOLDER,
    "stamp-at-adopt": PLACEHOLDER,
    "attempt-is-current": Case(
        LEAK, Faults(confuse=1, duplicate=0.5), by_itself=Case(harm("delivered-in-order"), Faults(duplicate=0.5))
    ),
    "peer-is-current": Case(harm("no-stray-write", "all-answered"), DEATHS),
    "stamp-at-read": Case(LEAK, Faults(misdirect=0.5)),
    "digest-matches": Case(LEAK, Faults(corrupt=0.5)),
    "layout-agrees": Case(LEAK, Faults(layout_drift=True)),
    "quarantine-on-revoke": Case(harm("no-stray-write"), CUTS),
    "quarantine-on-mismatch": Case(LEAK, play=stray_in_pieces),
    "drain-or-fence": Case(harm("no-stray-write"), Faults(cancel=0.1, deadline=0.2, stall=0.3)),
    "hold-source": Case(harm("source-held"), Faults(cancel=0.2, deadline=0.1), start=10),
    "pass-ended": Case(harm("no-stray-write"), Faults(cancel=0.3, deadline=0.1)),
    "tombstone": Case(harm("no-stray-write"), Faults(deadline=0.1, duplicate=0.5), seeds=60),
    "fence-on-start": Case(harm("no-stray-write"), Faults(former_writes=9)),
    "batch-bound": Case(harm("batches-bounded")),
    "settle-before-cancel": Case(harm("no-cut-transfer"), Faults(cancel=0.3)),
    "zero-tail": Case(harm("sends-own-bytes"), Faults(unzeroed=True)),
    "tenant-salt": Case(LEAK, Faults(unsalted=True), reuse=True),
    "verified-before-shared": Case(LEAK, Faults(shared_early=True), WIDE, reuse=True),
}

SPOILT = Faults(spoil=0.5)

SHARED: dict[str, Case] = {
    "hold-source@prefill": Case(harm("source-held"), Faults(cancel=0.2, deadline=0.1), WIDE, reuse=True),
    "pass-ended@prefill": Case(harm("no-stray-write"), Faults(cancel=0.3, deadline=0.1), WIDE, reuse=True),
    "stamp-at-read@prefill": Case(LEAK, Faults(spoil=0.1), WIDE, reuse=True),
    "quarantine-on-mismatch@prefill": Case(harm("misread-is-quarantined"), SPOILT, WIDE, reuse=True),
}
"""Guards that stood before pages were shared, and what their absence does to shared ones."""


def play(case: Case, rules: Rules, seed: int) -> World:
    """One run of a case, to its end or to the event that was refused."""
    return case.play(rules) if case.play is not None else finish(world_of_case(case, rules, seed))


def world_of_case(case: Case, rules: Rules, seed: int, stepper: Stepper = step) -> World:
    """Build the world of a case."""
    rewrites = tuple(make(case.capacity) for make in case.rewrites)
    setup = Setup(
        rules,
        case.capacity,
        case.fence,
        case.faults,
        seed,
        rewrites=rewrites,
        engine_pages=case.engine_pages,
        prefix_reuse=case.reuse,
    )
    requests = draw_requests(Random(seed), 8, 24)
    return World(setup, draw_families(Random(seed), requests) if case.reuse else requests, stepper)


def first_harm(case: Case, rules: Rules) -> int | None:
    """Give the first seed that does the case's harm; None where none does."""
    seeds = range(1) if case.play is not None else range(case.start, case.start + case.seeds)
    for seed in seeds:
        broken = set(play(case, rules, seed).broken)
        if broken & case.harm or (broken and not case.harm):
            return seed
    return None
