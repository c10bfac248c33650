"""Properties asked of what a step touched say what they say of the whole node."""

import pytest

from kvfence.core.errors import KvfenceError
from kvfence.protocol.events import Event
from kvfence.protocol.guards import GUARDS, Rules
from kvfence.protocol.properties import OF_NODES, OF_STEPS, SOMETIMES, Taken, broken_by, reached_by
from kvfence.protocol.relevance import _NODES, _STEPS, kinds_of, relevant_to
from kvfence.protocol.step import Node, Step, step
from kvfence.protocol.touched import WHOLE, broken_in_part, changed, named
from kvfence.sim.campaign import world_of
from kvfence.sim.cases import CASES, SHARED, Case, world_of_case
from kvfence.sim.world import World


class Compared:
    """A stepper that asks every property twice, up to the first that breaks. Holds: what it asked, and what broke."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.broken: set[str] = set()

    def __call__(self, rules: Rules, node: Node, event: Event) -> Step:
        result = step(rules, node, event)
        if not self.broken:
            taken = Taken(node, event, result)
            whole = set(broken_by(taken)) - WHOLE
            kinds, attempts = kinds_of(taken), named(node, event, result)
            relevant = relevant_to(type(node), kinds)
            reached = {p.name for p in relevant.sometimes if p.holds(taken)}
            assert reached == set(reached_by(taken))
            assert set(broken_in_part(taken, kinds, attempts)) == whole
            if result.node.lives is node.lives:
                assert changed(node.handoffs, result.node.handoffs) <= attempts
            self.num_asked += 1
            self.broken |= whole
        return result


def test_the_table_of_relevance_names_every_property() -> None:
    """A new property is asked nowhere until the table says where."""
    assert set(_NODES) == {p.name for p in OF_NODES}
    assert set(_STEPS) == {p.name for p in (*OF_STEPS, *SOMETIMES)}


@pytest.mark.parametrize("seed", range(12))
def test_with_all_guards_every_step_says_the_same(seed: int) -> None:
    """Under all faults, shared pages among them: nothing breaks in part or whole, and no step changes what it hides."""
    compared, drawn = Compared(), world_of(seed, Rules.all())
    World(drawn.setup, drawn.waiting, compared).run()
    assert compared.num_asked > 50
    assert not compared.broken


SEEN = {case.harm: (name, case) for name, case in {**CASES, **SHARED}.items() if case.play is None}


@pytest.mark.parametrize("name", [name for name, _ in SEEN.values()])
def test_without_a_guard_the_first_break_is_seen_in_the_part(name: str) -> None:
    """What breaks first, where a guard is away, breaks in the part as in the whole."""
    case: Case = {**CASES, **SHARED}[name]
    guard = GUARDS.get(name)
    rules = Rules.without(name, *(guard.alone if guard is not None else ()))
    for seed in range(case.start, case.start + 4):
        try:
            world_of_case(case, rules, seed, Compared()).run()
        except KvfenceError:
            continue
