"""Many seeds, each with its own mix of faults: what broke at which seed, and what was reached at all."""

from collections.abc import Iterable
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.transitions import Fence
from kvfence.sim.faults import EVERYTHING, Faults
from kvfence.sim.process import Setup
from kvfence.sim.workload import draw_families, draw_requests
from kvfence.sim.world import World

FENCES = (Fence.PEER_EXIT, Fence.NEW_SESSION, Fence.AT_RECEIPT)
CAPACITY = Capacity(page_size=4, context_tokens=24, prefill_pages=6, decode_pages=9)
WIDE = replace(CAPACITY, prefill_pages=9, decode_pages=14)
"""Where prompts share pages: room for several at once."""

NUM_REQUESTS = 8


class Campaign(Struct):
    """What many runs showed.

    ``broken``: by property, the seeds at which it failed. ``reached``: how many runs reached each *sometimes*.
    ``happened``: how often each kind of thing did, faults among them. ``decisions``: how often each guard gave each
    answer, as (guard, place, answer).
    """

    num_runs: int = 0
    num_steps: int = 0
    broken: dict[str, tuple[int, ...]] = {}
    reached: dict[str, int] = {}
    happened: dict[str, int] = {}
    decisions: dict[tuple[str, str, str], int] = {}

    def add(self, seed: int, world: World) -> None:
        """Count one run that has come to its end."""
        self.num_runs += 1
        self.num_steps += world.num_steps
        for name in world.broken:
            self.broken[name] = (*self.broken.get(name, ()), seed)
        for name in world.reached:
            self.reached[name] = self.reached.get(name, 0) + 1
        for kind, count in world.around.happened.items():
            self.happened[kind] = self.happened.get(kind, 0) + count
        for key, count in world.decisions.items():
            self.decisions[key] = self.decisions.get(key, 0) + count


def draw_faults(rng: Random, faults: Faults) -> Faults:
    """Leave out about half of the faults, so that runs without one reach further."""
    kept = {name: getattr(faults, name) for name in Faults.__struct_fields__ if rng.random() < 0.5}
    return replace(Faults(), **kept)


def world_of(seed: int, rules: Rules, faults: Faults = EVERYTHING, num_workers: int = 1) -> World:
    """Build the world of one seed: transport, requests, prefix re-use and faults are drawn from it alone.

    ``num_workers``: of each role.
    """
    rng = Random(seed)
    fence = FENCES[seed % len(FENCES)]
    requests = draw_requests(rng, NUM_REQUESTS, CAPACITY.context_tokens)
    drawn = draw_faults(rng, faults)
    reuse = bool(seed // len(FENCES) % 2)
    if reuse:  # pages that are shared and then spoilt need runs that live long enough
        requests = draw_families(rng, (*requests, *draw_requests(rng, NUM_REQUESTS // 2, CAPACITY.context_tokens, "s")))
        drawn = draw_faults(rng, drawn)
    capacity = WIDE if reuse else CAPACITY
    setup = Setup(rules, capacity, fence, drawn, seed, prefix_reuse=reuse)
    return World(replace(setup, num_prefill=num_workers, num_decode=num_workers), requests)


def run(seeds: Iterable[int], rules: Rules, faults: Faults = EVERYTHING, num_workers: int = 1) -> Campaign:
    """Run every seed to rest."""
    campaign = Campaign()
    for seed in seeds:
        campaign.add(seed, world_of(seed, rules, faults, num_workers).run())
    return campaign
