"""Everything that can happen next in a world: what drivers do, what goes wrong, and what only patience brings."""

from collections.abc import Iterator

from kvfence.prove.actions import ORDINARY, PATIENCE, fence_start, land_late
from kvfence.prove.bounds import BITS
from kvfence.prove.faults import faults
from kvfence.prove.model import Edge, Model
from kvfence.prove.steps import Outcome
from kvfence.prove.world import World


def start_of(model: Model) -> World:
    """Give the world in which a search begins: decode has the proof that no former life writes, unless some do."""
    if "former-writes" in model.bounds.setups:
        return model.first
    return next((edge.world for edge in fence_start(model, model.first)), model.first)


def edges(model: Model, world: World) -> tuple[list[Edge], bool]:
    """Give everything that can happen, and whether the world is at rest but for faults."""
    found, at_rest = list(_work(model, world)), False
    if not found:
        found = list(_patience(model, world))
        at_rest = not found
    found += _optional(model, world)
    return found, at_rest


def _work(model: Model, world: World) -> Iterator[Edge]:
    for action in ORDINARY:
        yield from action(model, world)


def _patience(model: Model, world: World) -> Iterator[Edge]:
    for action in PATIENCE:
        found = list(action(model, world))
        if found:
            yield from found
            return


def _optional(model: Model, world: World) -> Iterator[Edge]:
    """What may happen and need not: late parts of writes, and faults."""
    yield from land_late(model, world)
    around = model.tables.around[world.around]
    if around.used.bit_count() < model.bounds.faults_max:
        for name, bit in BITS.items():
            if name in model.bounds.faults and not around.used & bit:
                marked = around._replace(used=around.used | bit)
                yield from faults(model, world, name, model.tables.around.id_of(marked))


def logged(model: Model, world: World) -> Iterator[tuple[Edge, tuple[Outcome, ...]]]:
    """Give everything that can happen, each with the steps that nodes take in it."""
    log, steps = model.tables.steps.log, model.tables.steps
    for way in (_work, _patience, _optional):
        steps.logging = True
        log.clear()
        for edge in way(model, world):
            yield edge, tuple(log)
            log.clear()
    steps.logging = False
