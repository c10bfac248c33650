"""Counting instead of refusing: the counts say what would have been refused, and nothing but that changes."""

import pytest

from kvfence.protocol.events import Event
from kvfence.protocol.guards import GUARDS, OBSERVABLE, Decision, Rules
from kvfence.protocol.step import Node, Step, step
from kvfence.sim.campaign import run, world_of
from kvfence.sim.faults import EVERYTHING, NONE, Faults
from kvfence.sim.world import World

SEEDS = 18
MISDIRECTED, CORRUPT = Faults(misdirect=0.5), Faults(corrupt=0.5)
COURSES = [*((seed, MISDIRECTED) for seed in (0, 2, 3, 10)), *((seed, CORRUPT) for seed in range(4))]
NAMED_BY_THEM = {"reads-own-bytes", "adopted-is-verified", "emitted-is-clean"}
"""The properties that say in other words that a verification guard is obeyed."""

VERIFICATION = {"count-matches@decode", "stamp-at-adopt@decode", "stamp-at-read@decode", "digest-matches@decode"}


class Heard:
    """A stepper that keeps what observable guards answered no to, in order."""

    def __init__(self) -> None:
        self.noes: list[Decision] = []

    def __call__(self, rules: Rules, node: Node, event: Event) -> Step:
        result = step(rules, node, event)
        self.noes += (d for d in result.decisions if not d.holds and f"{d.guard}@{d.place}" in OBSERVABLE)
        return result


def play(seed: int, rules: Rules, faults: Faults) -> list[Decision]:
    """Run one seed to rest and give its noes."""
    heard, drawn = Heard(), world_of(seed, rules, faults)
    World(drawn.setup, drawn.waiting, heard).run()
    return heard.noes


def named(decision: Decision) -> tuple[str, str, str]:
    """What the decision is about, whatever came of it; incarnations differ from run to run."""
    return decision.guard, decision.place, str(decision.attempt and decision.attempt.counter)


def test_what_may_be_observed_is_verification_alone() -> None:
    """No guard that makes pages or messages safe is among them, and each refuses a request."""
    assert OBSERVABLE == VERIFICATION
    assert all(GUARDS[asked.split("@")[0]].refuses for asked in OBSERVABLE)
    rules = Rules.observing()
    assert not rules.absent
    assert rules.enforces("stamp-at-read", "prefill")
    assert not rules.enforces("stamp-at-read", "decode")


def test_the_first_no_is_the_same_and_counted_instead_of_obeyed() -> None:
    """Until the first refusal both runs take the same steps: what one refuses, the other counts."""
    met = set()
    for seed, faults in COURSES:
        refused, observed = play(seed, Rules.all(), faults), play(seed, Rules.observing(), faults)
        assert bool(refused) == bool(observed)
        if refused:
            assert named(refused[0]) == named(observed[0])
            assert {decision.answer for decision in refused} == {"refuse"}
            assert {decision.answer for decision in observed} == {"observed"}
            met.add(refused[0].guard)
    assert met == {"stamp-at-adopt", "stamp-at-read", "digest-matches"}


def test_honest_traffic_is_counted_as_nothing() -> None:
    """Without faults no guard would have refused anything."""
    for seed in range(SEEDS // 2):
        assert play(seed, Rules.observing(), NONE) == []


def test_all_else_holds_while_observing() -> None:
    """Under every fault: no page in two lots, no message mistaken, nobody waits for ever. Only bytes may be foreign."""
    campaign = run(range(16, 16 + SEEDS), Rules.observing(), EVERYTHING)  # all three are met among these seeds
    assert set(campaign.broken) == NAMED_BY_THEM


@pytest.mark.parametrize("asked", sorted(VERIFICATION))
def test_an_observed_guard_is_not_obeyed_and_says_so(asked: str) -> None:
    """The decision is neither enforced nor merely ignored."""
    name, place = asked.split("@")
    rules = Rules.observing()
    assert rules.observes(name, place)  # type: ignore[arg-type]
    assert not rules.enforces(name, place)  # type: ignore[arg-type]
    assert Decision(name, place, None, holds=False, enforced=False, observed=True).answer == "observed"  # type: ignore[arg-type]
    assert Decision(name, place, None, holds=False, enforced=False).answer == "ignored"  # type: ignore[arg-type]
