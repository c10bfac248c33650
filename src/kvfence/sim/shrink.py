"""Makes a run that breaks a property shorter: fewer requests, fewer kinds of faults, fewer choices, the same property.

Delta debugging over the tape of its choices (``tape.py``): blocks are cut, halves first, as long as what is left still
breaks the property. Every candidate is a whole run, so nothing is assumed of what a choice leads to.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import KvfenceError
from kvfence.driver.loop import Stepper
from kvfence.protocol.commands import Move, Send
from kvfence.protocol.events import Event, PeerUp
from kvfence.protocol.guards import Rules
from kvfence.protocol.step import Node, Step, step
from kvfence.sim.faults import Faults
from kvfence.sim.process import Setup
from kvfence.sim.tape import Choice
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World
from kvfence.trace.lines import line_of

RUNS_MAX = 600
"""Candidates that are tried; what is shortest by then is given."""

REFUSED = "an event was refused"
"""What breaks where a ledger or a node refuses an event or a move."""


class Course(Struct, frozen=True):
    """A run as it can be played again: how its world is built, who asks, and every choice."""

    setup: Setup
    requests: tuple[SimRequest, ...]
    choices: tuple[Choice, ...]

    def play(self, stop_at: str, stepper: Stepper = step) -> World:
        """Play it until a property of this name breaks, or to its end."""
        world = World(replace(self.setup, choices=self.choices), self.requests, stepper)
        return finish(world, stop_at)


class Shrunk(Struct, frozen=True):
    """The shortest course found. ``num_tried``: candidates. ``story``: its steps, up to the one that breaks it."""

    property: str
    course: Course
    num_tried: int
    num_steps: int
    story: tuple[str, ...]


def finish(world: World, stop_at: str = "") -> World:
    """Run a world to its end; an event that its nodes or ledgers refuse ends it as broken."""
    try:
        world.run(stop_at)
    except KvfenceError:
        world.broken[REFUSED] = world.num_steps
    return world


def shrink(setup: Setup, requests: Sequence[SimRequest], name: str, runs_max: int = RUNS_MAX) -> Shrunk:
    """Give the shortest course found that still breaks this property; the given one must."""
    world = finish(World(setup, requests), name)
    rng = world.around.rng
    course = Course(setup, tuple(requests), tuple(rng.drawn) if rng is not None else ())
    shrinker = _Shrinker(course, name, runs_max)
    shrinker.run()
    heard = Storyteller()
    ended = shrinker.best.play(name, heard)
    return Shrunk(name, shrinker.best, shrinker.num_tried, ended.num_steps, tuple(heard.lines))


class _Shrinker:
    def __init__(self, course: Course, name: str, runs_max: int) -> None:
        self.best = course
        self.name = name
        self.num_tried = 0
        self._runs_max = runs_max

    def run(self) -> None:
        """Try whole requests and kinds of faults first: they take the most away."""
        for candidate in (self._without_requests, self._without_faults):
            self._take(candidate)
        while self._cut_blocks() and self.num_tried < self._runs_max:
            for candidate in (self._without_requests, self._without_faults):
                self._take(candidate)

    def _take(self, candidates: Callable[[], Iterator[Course]]) -> None:
        for candidate in candidates():
            self._try(candidate)

    def _try(self, candidate: Course) -> bool:
        if self.num_tried >= self._runs_max:
            return False
        self.num_tried += 1
        world = candidate.play(self.name)
        if self.name not in world.broken:
            return False
        rng = world.around.rng
        played = tuple(rng.drawn) if rng is not None else ()
        self.best = replace(candidate, choices=played[: len(candidate.choices)])
        return True

    def _without_requests(self) -> Iterator[Course]:
        for request in self.best.requests:
            rest = tuple(each for each in self.best.requests if each.id != request.id)
            if rest:
                yield replace(self.best, requests=rest)

    def _without_faults(self) -> Iterator[Course]:
        for name in Faults.__struct_fields__:
            faults = self.best.setup.faults
            if getattr(faults, name):
                calmer = replace(faults, **{name: type(getattr(faults, name))()})
                yield replace(self.best, setup=replace(self.best.setup, faults=calmer))

    def _cut_blocks(self) -> bool:
        """Cut blocks of choices, halves first; did anything go?"""
        before, size = len(self.best.choices), max(1, len(self.best.choices) // 2)
        while size and self.num_tried < self._runs_max:
            start = 0
            while start < len(self.best.choices) and self.num_tried < self._runs_max:
                choices = self.best.choices
                shorter = replace(self.best, choices=choices[:start] + choices[start + size :])
                if not self._try(shorter):
                    start += size
            size //= 2
        return len(self.best.choices) < before


class Storyteller:
    """A stepper that keeps a line for each step. Holds: ``lines``."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, rules: Rules, node: Node, event: Event) -> Step:
        """Step, and tell who saw what, what it led to, and which guard said no."""
        result = step(rules, node, event)
        if isinstance(event, PeerUp):
            return result  # how workers met is no part of a story
        role = type(node).__name__.removesuffix("Node").lower()
        did = ", ".join(map(_short, result.commands)) or "nothing"
        noes = [f"{d.guard} {d.answer}" for d in result.decisions if not d.holds]
        said = f"; {', '.join(noes)}" if noes else ""
        self.lines.append(f"{len(self.lines) + 1}. {role}: {line_of(_about(event))} -> {did}{said}")
        return result


def _about(event: Event) -> object:
    envelope = getattr(event, "envelope", None)
    return event if envelope is None else envelope.message


def _short(command: object) -> str:
    match command:
        case Send(message=message):
            return f"say {type(message).__name__}"
        case Move(move=move, serial=serial):
            return f"{move.value} lot {serial}"
    return type(command).__name__
