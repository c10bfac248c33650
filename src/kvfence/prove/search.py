"""Breadth-first over every reachable world: the shortest way to each broken property, or none within the bounds.

Read ``model.py`` for what a world is and ``canon.py`` for which worlds count as one.
"""

import resource
import time
from collections.abc import Callable, Collection

from msgspec import Struct

from kvfence.prove.bounds import Bounds
from kvfence.prove.canon import Canon, Canonical
from kvfence.prove.model import Edge, Model
from kvfence.prove.settled import Settled
from kvfence.prove.successors import edges, start_of
from kvfence.prove.world import World

CHECKED_EVERY = 512
"""Worlds between two looks at the clock."""

Progress = Callable[[int, int, int], None]
"""Called with (states, depth, how many wait)."""


class Limits(Struct, frozen=True):
    """When a search gives up. 0: never. Units: seconds of this process's CPU time, bytes of its memory."""

    states_max: int = 0
    cpu_s_max: float = 0
    memory_max: int = 0


class Way(Struct, frozen=True):
    """How a property came to be broken: every edge from the start; ``at_rest``: nothing was left to happen."""

    name: str
    edges: tuple[Edge, ...]
    at_rest: bool = False


class Result(Struct, frozen=True):
    """What a search saw.

    ``exhausted``: every reachable world was visited. ``bound``: what ended it otherwise. ``broken``: by property, the
    shortest way. ``reached``: the *sometimes* properties. Units: cpu_s, seconds; peak_bytes of the whole process.
    """

    exhausted: bool
    bound: str
    states: int
    transitions: int
    depth: int
    at_rest: int
    steps: int
    cpu_s: float
    peak_bytes: int
    broken: tuple[Way, ...]
    reached: frozenset[str]


class Search:
    """One search. Holds: ``seen``, each world with the one it was first reached from."""

    def __init__(
        self, bounds: Bounds, limits: Limits = Limits(), targets: Collection[str] = (), progress: Progress | None = None
    ) -> None:
        self.bounds, self.limits = bounds, limits
        self.model = Model(bounds)
        self.canonical: Canonical = _as_it_is if bounds.exact else Canon(self.model.tables).of
        self.settle: Canonical = Settled(self.model).of if bounds.settled else _as_it_is
        self.targets = frozenset(targets)
        self.seen: dict[World, World | None] = {}
        self.transitions = self.at_rest = self.depth = 0
        self.bound = ""
        self._ways: dict[str, Way] = {}
        self._progress = progress
        self._began = time.process_time()

    def run(self) -> Result:
        """Search until everything was seen, a target was found, or a limit was met."""
        start = self.named(start_of(self.model))
        self.seen[start] = None
        front = [start]
        while front and not self.bound:
            front = self._deepen(front)
        return self._result(exhausted=not front and not self.bound)

    def broken_off(self) -> Result:
        """Give what was seen until somebody interrupted ``run``."""
        self.bound = "an interrupt"
        return self._result(exhausted=False)

    def _deepen(self, front: list[World]) -> list[World]:
        found: list[World] = []
        seen, canonical, settle = self.seen, self.canonical, self.settle
        for number, world in enumerate(front):
            if number % CHECKED_EVERY == 0 and self._is_over(len(front) - number + len(found)):
                return front
            ways, at_rest = edges(self.model, world)
            self.transitions += len(ways)
            if at_rest:
                self.at_rest += 1
                for name in self.model.broken_at_rest(world):
                    self._note(name, world, None)
            for edge in ways:
                for name in edge.broken:
                    self._note(name, world, edge)
                after = canonical(settle(edge.world))
                if after not in seen:
                    seen[after] = world
                    found.append(after)
            if self.bound:
                return front
        self.depth += 1
        return found

    def named(self, world: World) -> World:
        """Give the world under which this one is searched."""
        return self.canonical(self.settle(world))

    def _is_over(self, waiting: int) -> bool:
        limits = self.limits
        if self._progress is not None:
            self._progress(len(self.seen), self.depth, waiting)
        if limits.states_max and len(self.seen) >= limits.states_max:
            self.bound = f"{limits.states_max} states"
        elif limits.cpu_s_max and time.process_time() - self._began >= limits.cpu_s_max:
            self.bound = f"{limits.cpu_s_max:.0f} s of CPU time"
        elif limits.memory_max and peak_bytes() >= limits.memory_max:
            self.bound = f"{limits.memory_max / 1e9:.1f} GB of memory"
        return bool(self.bound)

    def _note(self, name: str, world: World, last: Edge | None) -> None:
        if name in self._ways:
            return
        path = self.way_to(world)
        self._ways[name] = Way(name, (*path, last) if last is not None else path, last is None)
        if not self.targets or name in self.targets:
            self.bound = "found"

    def way_to(self, world: World) -> tuple[Edge, ...]:
        """Give the edges from the start to a world that was seen."""
        path: list[Edge] = []
        while (before := self.seen[world]) is not None:
            path.append(next(edge for edge in edges(self.model, before)[0] if self.named(edge.world) == world))
            world = before
        return tuple(reversed(path))

    def _result(self, *, exhausted: bool) -> Result:
        return Result(
            exhausted,
            self.bound,
            len(self.seen),
            self.transitions,
            self.depth,
            self.at_rest,
            len(self.model.tables.steps),
            time.process_time() - self._began,
            peak_bytes(),
            tuple(self._ways.values()),
            frozenset(self.model.tables.steps.reached),
        )


def _as_it_is(world: World) -> World:
    return world


def peak_bytes() -> int:
    """Give the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def explore(bounds: Bounds, limits: Limits = Limits(), targets: Collection[str] = ()) -> Result:
    """Search a closed world within its bounds."""
    return Search(bounds, limits, targets).run()
