"""The simulation is judged by known mistakes: planted ones are found, and nothing is found where guards are on."""

import pytest

from kvfence.driver.mutants import commit_ignored
from kvfence.protocol.guards import GUARDS, Rules
from kvfence.protocol.transitions import Fence
from kvfence.sim.cases import Case, play
from kvfence.sim.judge import ELSEWHERE, FIRST_HIT_MAX, Hits, judge, mutants
from kvfence.sim.shrink import Course, finish, shrink
from kvfence.sim.tape import Tape
from kvfence.sim.world import World

QUICK = ("the incident's engine", "a failed post counts as done", "without hold-source")


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_mistake_is_found(name: str) -> None:
    """Within far fewer runs than the bound; every guard's absence is found by ``test_guards.py``."""
    found: Hits = judge(next(each for each in mutants() if each.name == name), rate_runs=1, runs_max=60)
    assert 1 <= found.first <= 60 < FIRST_HIT_MAX
    assert found.broken


def test_every_known_error_is_planted_or_said_to_be_elsewhere() -> None:
    """M1 to M15: each stands for some mutant, or a reason says why it cannot be planted here."""
    planted = {known for each in mutants() for known in each.known_as}
    assert planted.isdisjoint(ELSEWHERE)
    assert planted | set(ELSEWHERE) == {f"M{number}" for number in range(1, 16)}
    assert {f"without {guard}" for guard in GUARDS} <= {each.name for each in mutants()}


def test_a_completion_that_is_never_heard_breaks_nothing() -> None:
    """M14: where prefill never hears Commit, its pages return all the same, once the floor has passed the attempt."""
    case = Case(frozenset(), fence=Fence.AT_RECEIPT, rewrites=(lambda _: commit_ignored,))
    for seed in range(6):
        world = play(case, Rules.all(), seed)
        assert world.broken == {}
        assert any(answer.num_tokens for answer in world.answers.values())


def test_a_tape_plays_the_run_it_was_drawn_from() -> None:
    """Played from its own choices a run ends in the same nodes and answers as drawn from its seed."""
    from kvfence.sim.campaign import world_of

    drawn = world_of(7, Rules.all())
    setup, requests = drawn.setup, tuple(drawn.waiting)
    drawn.run()
    tape = drawn.around.rng
    assert isinstance(tape, Tape)
    again = Course(setup, requests, tuple(tape.drawn)).play("")
    assert (again.nodes, again.answers) == (drawn.nodes, drawn.answers)


def test_an_empty_tape_is_a_run_in_which_nothing_goes_wrong() -> None:
    """Every choice that is missing is the quiet one."""
    from kvfence.sim.campaign import world_of

    drawn = world_of(7, Rules.all())
    quiet = Course(drawn.setup, tuple(drawn.waiting), ()).play("")
    assert quiet.broken == {}
    assert not {"lose", "kill_decode", "misdirect", "corrupt"} & set(quiet.around.happened)


def test_a_failing_run_is_made_short_and_still_fails() -> None:
    """One request is left of eight, and the last step told is the one that breaks the property."""
    from kvfence.sim.cases import CASES, world_of_case

    case, rules = CASES["settle-before-cancel"], Rules.without("settle-before-cancel")
    seed = next(s for s in range(20) if finish(world_of_case(case, rules, s)).broken)
    world: World = world_of_case(case, rules, seed)
    found = shrink(world.setup, world.waiting, "no-cut-transfer", runs_max=150)
    assert len(found.course.requests) == 1
    assert found.num_steps < 40
    assert "ClientGone" in found.story[-1]
    assert found.course.play("no-cut-transfer").broken.keys() == {"no-cut-transfer"}
