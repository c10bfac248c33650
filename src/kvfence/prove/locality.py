"""An action reads a few parts of a world; where these recur, what it leads to is looked up.

Whoever declares too few parts fails at once: the others are absent while the action runs.
"""

from collections.abc import Callable, Iterator
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from kvfence.prove.model import Edge, Model
from kvfence.prove.world import ABSENT, World

Action = Callable[[Model, World], Iterator[Edge]]
Found = Callable[[Model, World], list[Edge]]

_NUMBERS = count()
NETWORK = World._fields.index("network")


class Change(NamedTuple):
    """What an edge does to any world that has the parts its action read. ``said``: the network it adds to."""

    kind: str
    about: Any
    parts: tuple[tuple[int, int], ...]
    said: int
    broken: tuple[str, ...]


def reads(*names: str) -> Callable[[Action], Found]:
    """Declare the parts that an action reads and writes; what it puts on its way is added to any network."""
    indexes = tuple(World._fields.index(name) for name in names)
    number = next(_NUMBERS)
    key_of = itemgetter(*indexes) if len(indexes) > 1 else itemgetter(indexes[0], indexes[0])

    def wrap(action: Action) -> Found:
        def run(model: Model, world: World) -> list[Edge]:
            if model.tables.steps.logging:
                return list(action(model, world))
            memory = model.memories[number]
            key = key_of(world)
            changes = memory.get(key)
            if changes is None:
                changes = memory[key] = tuple(_changes(model, world, indexes, action))
            return [_applied(model, world, change) for change in changes]

        return run

    return wrap


def _changes(model: Model, world: World, indexes: tuple[int, ...], action: Action) -> Iterator[Change]:
    part = World(*(value if index in indexes else ABSENT for index, value in enumerate(world)))
    part = part._replace(network=model.silence)
    for edge in action(model, part):
        changed = tuple(
            (index, after)
            for index, (before, after) in enumerate(zip(part, edge.world, strict=True))
            if before != after and index != NETWORK
        )
        yield Change(edge.kind, edge.about, changed, edge.world.network, edge.broken)


def _applied(model: Model, world: World, change: Change) -> Edge:
    after = list(world)
    for index, value in change.parts:
        after[index] = value
    if change.said != model.silence:
        after[NETWORK] = model.joined(world.network, change.said)
    return Edge(change.kind, change.about, World(*after), change.broken)
