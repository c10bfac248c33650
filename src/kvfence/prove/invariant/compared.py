"""Worlds of the search held against the proof: every conjunct on each and every edge explained, within small bounds."""

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from kvfence.protocol.transitions import Fence
from kvfence.prove.bounds import Asked, Bounds
from kvfence.prove.invariant.observed import Observed
from kvfence.prove.invariant.refinement import Refinement, broken_in
from kvfence.prove.model import Model
from kvfence.prove.successors import edges, start_of
from kvfence.prove.world import World

_ONE = (Asked(),)
_NETWORK = frozenset({"loss", "duplicate", "stall", "cancel", "deadline", "retry", "silence"})

COMPARED: dict[str, Bounds] = {
    "one request, nothing wrong": Bounds(requests=_ONE, exact=True),
    "broken and misdirected writes": Bounds(
        requests=(Asked(num_tokens=3),), exact=True, faults=frozenset({"corrupt", "misdirect"}), faults_max=1
    ),
    "network, time and people": Bounds(requests=_ONE, exact=True, faults=_NETWORK, faults_max=1),
    "checked at receipt": Bounds(
        requests=_ONE, exact=True, fence=Fence.AT_RECEIPT, faults=frozenset({"cancel", "deadline"}), faults_max=1
    ),
    "a new session": Bounds(
        requests=_ONE, exact=True, fence=Fence.NEW_SESSION, faults=frozenset({"stall"}), faults_max=1
    ),
    "late writes and a new session": Bounds(
        requests=_ONE,
        exact=True,
        fence=Fence.NEW_SESSION,
        faults=frozenset({"stall", "cancel", "deadline"}),
        faults_max=1,
    ),
    "decode dies": Bounds(requests=_ONE, exact=True, faults=frozenset({"restart-decode"}), faults_max=1),
    "prefill dies": Bounds(requests=_ONE, exact=True, faults=frozenset({"restart-prefill"}), faults_max=1),
    "two requests": Bounds(requests=(Asked(), Asked()), exact=True, faults=frozenset({"stall"}), faults_max=1),
}
"""Small worlds in which nearly every action happens."""


class Compared(Struct, frozen=True):
    """What a walk found.

    ``whole``: every reachable world was visited. ``broken``: conjuncts that some world breaks. ``unexplained``: edges
    that no few actions make, by kind. ``used``: how often each action was part of an explanation.
    """

    name: str
    worlds: int
    edges: int
    compared: int
    whole: bool
    broken: tuple[str, ...]
    unexplained: tuple[str, ...]
    used: dict[str, int]


def walk(name: str, bounds: Bounds, *, worlds_max: int, every: int = 1) -> Compared:
    """Visit worlds breadth-first; compare each, and every so many of the edges."""
    model, refinement = Model(bounds), Refinement(bounds.rules)
    first = start_of(model)
    seen, front = {first}, [first]
    broken: set[str] = set()
    unexplained: list[str] = []
    used: Counter[str] = Counter()
    numbers = [0, 0]
    for world in _growing(front):
        observed = Observed(model.tables, world)
        broken.update(broken_in(observed))
        for edge in edges(model, world)[0]:
            numbers[0] += 1
            if numbers[0] % every == 0 and not edge.broken:
                numbers[1] += 1
                path = refinement.explain(observed, Observed(model.tables, edge.world, observed))
                unexplained += [f"{edge.kind}: {', '.join(path.unexplained)}"] if path.unexplained else []
                used.update(path.actions)
            if edge.world not in seen and len(seen) < worlds_max:
                seen.add(edge.world)
                front.append(edge.world)
    whole = len(seen) < worlds_max
    found = (tuple(sorted(broken)), tuple(unexplained), dict(sorted(used.items())))
    return Compared(name, len(seen), numbers[0], numbers[1], whole, *found)


def _growing(front: list[World]) -> Iterator[World]:
    """Go through a list that grows meanwhile."""
    place = 0
    while place < len(front):
        yield front[place]
        place += 1
