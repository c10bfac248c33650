"""Seeded walks under every fault with every guard on: nothing breaks, and everything that must be met is met."""

from random import Random

import pytest

from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.protocol.properties import SOMETIMES
from kvfence.protocol.transitions import Fence
from kvfence.sim.campaign import CAPACITY, FENCES, run, world_of
from kvfence.sim.faults import NONE
from kvfence.sim.process import Setup
from kvfence.sim.workload import draw_requests
from kvfence.sim.world import World

SEEDS = 160


def test_no_property_breaks_and_each_sometimes_is_reached() -> None:
    """Always-properties hold after every step, at-rest ones at the end; a run that meets nothing tests nothing."""
    campaign = run(range(SEEDS), Rules.all())
    assert campaign.broken == {}
    assert {property_.name for property_ in SOMETIMES} <= set(campaign.reached)
    assert campaign.num_steps > 100 * SEEDS


def test_two_workers_of_each_role_break_nothing_either() -> None:
    """Attempts go to any pair, writers die while others write on; without quarantine that is found."""
    seeds = range(24)
    campaign = run(seeds, Rules.all(), num_workers=2)
    assert campaign.broken == {}
    assert {"adopted", "fenced-by-exit", "fenced-by-session", "worker-lost", "silence-told"} <= set(campaign.reached)
    assert run(seeds, Rules.without("quarantine-on-revoke"), num_workers=2).broken


@pytest.mark.parametrize("fence", FENCES)
def test_without_faults_every_request_that_fits_gets_all_its_tokens(fence: Fence) -> None:
    """Nothing goes wrong, so nobody waits for ever, is preempted into an end, or meets a deadline."""
    for seed in range(12):
        requests = draw_requests(Random(seed), 8, CAPACITY.context_tokens)
        world = World(Setup(Rules.all(), CAPACITY, fence, NONE, seed), requests).run()
        assert world.broken == {}
        for answer in world.answers.values():
            fits = answer.request.id not in world.misfits
            assert answer.reason is (EndReason.LENGTH if fits else EndReason.DOES_NOT_FIT)
            assert answer.num_tokens == (answer.request.max_tokens if fits else 0)


def test_one_seed_replays_a_run() -> None:
    """The same seed takes the same steps to the same end."""
    first, second = world_of(4, Rules.all()).run(), world_of(4, Rules.all()).run()
    assert first.num_steps == second.num_steps
    assert first.nodes == second.nodes
    assert first.answers == second.answers
