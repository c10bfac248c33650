"""Under which fault the removal of each guard shows, and as what."""

from collections.abc import Callable, Iterable
from random import Random

from msgspec import Struct

from kvfence.core.errors import KvfenceError
from kvfence.driver.loop import Rewrite
from kvfence.driver.mutants import placeholder_on_refusal
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.transitions import Fence
from kvfence.sim.faults import Faults
from kvfence.sim.process import Setup
from kvfence.sim.workload import SimRequest, draw_requests
from kvfence.sim.world import World

ROOMY = Capacity(page_size=4, context_tokens=24, prefill_pages=6, decode_pages=9)
"""Every request that fits the context fits both pools."""

CRAMPED = Capacity(page_size=4, context_tokens=24, prefill_pages=3, decode_pages=9)
"""The incident's mistake: prefill's pool is smaller than the context."""

REFUSED = "an event was refused"
"""A page move or event so wrong that the ledger or the node refused it."""


class Case(Struct, frozen=True):
    """One guard's fault. ``harm``: the properties that its removal breaks. ``seeds``: enough to meet the fault."""

    harm: frozenset[str]
    faults: Faults = Faults()
    capacity: Capacity = ROOMY
    fence: Fence = Fence.PEER_EXIT
    rewrites: tuple[Callable[[Capacity], Rewrite], ...] = ()
    seeds: int = 25
    start: int = 0


def harm(*names: str) -> frozenset[str]:
    """The properties that break."""
    return frozenset(names)


LEAK = harm("reads-own-bytes")
CUTS = Faults(cancel=0.2, deadline=0.1, duplicate=0.3, lose=0.1)
DEATHS = Faults(kill_prefill=0.2, kill_decode=0.2, kill_gateway=0.1, duplicate=0.5, lose=0.1)

CASES: dict[str, Case] = {
    "fits": Case(harm("refusal-arrives"), capacity=CRAMPED),
    "refusal-is-final": Case(LEAK, capacity=CRAMPED, rewrites=(placeholder_on_refusal,)),
    "count-matches": Case(LEAK, capacity=CRAMPED, rewrites=(placeholder_on_refusal,)),
    "stamp-at-adopt": Case(LEAK, capacity=CRAMPED, rewrites=(placeholder_on_refusal,)),
    "attempt-is-current": Case(LEAK, Faults(confuse=1, duplicate=0.5)),
    "peer-is-current": Case(harm("no-stray-write", "all-answered"), DEATHS),
    "stamp-at-read": Case(LEAK, Faults(misdirect=0.5)),
    "digest-matches": Case(LEAK, Faults(corrupt=0.5)),
    "layout-agrees": Case(harm("layouts-agree"), Faults(layout_drift=True)),
    "quarantine-on-revoke": Case(harm("no-stray-write"), CUTS),
    "quarantine-on-mismatch": Case(LEAK, Faults(misdirect=0.5)),
    "drain-or-fence": Case(harm("fence-has-proof"), Faults(cancel=0.1, deadline=0.2, stall=0.3)),
    "hold-source": Case(harm("source-held"), Faults(cancel=0.2, deadline=0.1)),
    "pass-ended": Case(harm("no-stray-write", "work-holds-pages"), Faults(cancel=0.3, deadline=0.1)),
    "tombstone": Case(harm("no-stray-write"), CUTS),
    "fence-on-start": Case(harm("no-stray-write"), Faults(former_writes=9)),
    "batch-bound": Case(harm("batches-bounded")),
    "settle-before-cancel": Case(harm("no-cut-transfer"), Faults(cancel=0.3)),
    "zero-tail": Case(harm("sends-own-bytes"), Faults(unzeroed=True)),
}


def build(case: Case, rules: Rules, seed: int, *, checked: bool = True) -> World:
    """One run of a case."""
    setup = Setup(
        rules,
        case.capacity,
        case.fence,
        case.faults,
        seed,
        rewrites=tuple(make(case.capacity) for make in case.rewrites),
        checked=checked,
    )
    return World(setup, requests_of(seed))


def requests_of(seed: int) -> tuple[SimRequest, ...]:
    """The same requests for the same seed."""
    return draw_requests(Random(seed), 8, 24)


def broken_by(case: Case, rules: Rules, seeds: Iterable[int]) -> dict[str, int]:
    """Run the seeds until the harm is done; say what broke, and at which seed first."""
    found: dict[str, int] = {}
    for seed in seeds:
        world = build(case, rules, seed)
        try:
            broken = set(world.run().broken)
        except KvfenceError:
            broken = {*world.broken, REFUSED}
        for name in broken:
            found.setdefault(name, seed)
    return found
