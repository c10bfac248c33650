"""One state of everything: three processes, messages and writes on their way, pages, clients, and who lives.

A world is nine small numbers; ``Tables`` has what each stands for. Two worlds are the same exactly if their numbers
are. Read ``model.py`` for what can happen in one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvfence.core.ids import Incarnation, RequestId
from kvfence.core.invariant import require
from kvfence.protocol.events import Event, TokensArrived
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.messages import EndReason
from kvfence.protocol.step import Node
from kvfence.prove.bounds import Bounds, rewrites_of
from kvfence.prove.pages import Cell, Write
from kvfence.prove.processes import Decode, Gateway, Prefill, Table
from kvfence.prove.steps import Steps

GATEWAY, PREFILL, DECODE = range(3)
ROLES = ("gateway", "prefill", "decode")


class World(NamedTuple):
    """One state, as numbers; the first three are the processes in the order of ``ROLES``."""

    gateway: int
    prefill: int
    decode: int
    network: int
    writes: int
    prefill_cells: int
    decode_cells: int
    clients: int
    around: int


ABSENT = -(1 << 40)
"""Stands for a part that an action does not read; asking a table for it is an error."""


class Network(NamedTuple):
    """What is in flight: numbers of messages, sorted, to come in any order; tokens in the order in which they left."""

    messages: tuple[int, ...] = ()
    tokens: tuple[TokensArrived, ...] = ()


class Clients(NamedTuple):
    """Who asked for what, and what they were told.

    ``asked``: the request behind every attempt, in the order of attempts. ``submitted``: how often each request was.
    ``ends``: what its client was told, in order. ``tainted``: attempts whose first token read bytes not their own.
    """

    asked: tuple[int, ...]
    submitted: tuple[int, ...]
    ends: tuple[tuple[EndReason, ...], ...]
    tainted: frozenset[int] = frozenset()

    @property
    def num_asking(self) -> int:
        """How many wait for an answer."""
        return sum(self.submitted) - sum(map(len, self.ends))


class Around(NamedTuple):
    """Who lives, what each has yet to hear from the supervisor, and what has gone wrong so far.

    ``used``: the faults that happened, a bit each. ``notices``: by role, in order. ``dying``: killed writers that are
    not reaped. ``born``: lives of each role so far. ``session``: how often decode's engine was rebuilt.
    ``fenced``: decode's life has the proof that nothing written for one before it can land.
    """

    lives: tuple[Incarnation, Incarnation, Incarnation]
    used: int = 0
    notices: tuple[tuple[Event, ...], tuple[Event, ...], tuple[Event, ...]] = ((), (), ())
    dying: tuple[Incarnation, ...] = ()
    born: tuple[int, int, int] = (1, 1, 1)
    session: int = 0
    fenced: bool = False


class Tables:
    """What the numbers of a world stand for."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.steps = Steps(bounds.rules, rewrites_of(bounds), exact=bounds.exact, settled=bounds.settled)
        self.networks: Table[Network] = Table()
        self.writes: Table[tuple[Write, ...]] = Table()
        self.cells: Table[tuple[Cell, ...]] = Table()
        self.clients: Table[Clients] = Table()
        self.around: Table[Around] = Table()

    def gateway(self, number: int) -> GatewayNode:
        """Give the gateway's node."""
        process = self.steps.processes[number]
        require(isinstance(process, Gateway), "this is no gateway")
        return process.node  # type: ignore[return-value]

    def prefill(self, number: int) -> Prefill:
        """Give prefill's process."""
        process = self.steps.processes[number]
        require(isinstance(process, Prefill), "this is no prefill")
        return process  # type: ignore[return-value]

    def decode(self, number: int) -> Decode:
        """Give decode's process."""
        process = self.steps.processes[number]
        require(isinstance(process, Decode), "this is no decode")
        return process  # type: ignore[return-value]

    def view(self, world: World, seen: "Seen | None" = None) -> "View":
        """Give a world as its properties ask for it."""
        return View(self, world, seen or Seen())


class Seen(NamedTuple):
    """What went wrong with bytes in one transition, in words."""

    wrong_reads: tuple[str, ...] = ()
    stray_writes: tuple[str, ...] = ()
    changed_sources: tuple[str, ...] = ()
    stale_slots: tuple[str, ...] = ()


class View:
    """A world and what was seen on the way to it: ``protocol.properties.World``."""

    def __init__(self, tables: Tables, world: World, seen: Seen) -> None:
        self._tables, self._world, self._seen = tables, world, seen
        self.disagreements: tuple[int, ...] = ()  # found where pages move: ``steps.py``

    @property
    def nodes(self) -> Iterable[Node]:
        """The node of every living process."""
        return [self._tables.steps.processes[number].node for number in self._world[:3]]

    @property
    def wrong_reads(self) -> tuple[str, ...]:
        """Tokens that left although they were computed from bytes that were not their sequence's own."""
        return self._seen.wrong_reads

    @property
    def stray_writes(self) -> tuple[str, ...]:
        """Writes, other than misdirected ones, that landed in a page neither granted for them nor quarantined."""
        return self._seen.stray_writes

    @property
    def changed_sources(self) -> tuple[str, ...]:
        """Posted writes that read a source page after it was somebody else's."""
        return self._seen.changed_sources

    @property
    def stale_slots(self) -> tuple[str, ...]:
        """Pages posted with another request's bytes behind their last token."""
        return self._seen.stale_slots

    @property
    def ends(self) -> Mapping[RequestId, tuple[EndReason, ...]]:
        """What the client was told each time it asked."""
        if self._world.clients == ABSENT:
            return {}
        clients = self._tables.clients[self._world.clients]
        told: dict[RequestId, tuple[EndReason, ...]] = {}
        for request, (times, ends) in enumerate(zip(clients.submitted, clients.ends, strict=True)):
            for time in range(times):
                last = len(ends) if time + 1 == times else time + 1
                told[_asking(request, time)] = ends[time:last]
        return told

    @property
    def misfits(self) -> set[RequestId]:
        """Requests that fit no pool or not the context."""
        bounds = self._tables.bounds
        if self._world.clients == ABSENT:
            return set()
        misfits = [request for request, asked in enumerate(bounds.requests) if bounds.misfit(asked)]
        clients = self._tables.clients[self._world.clients]
        return {_asking(request, time) for request in misfits for time in range(clients.submitted[request])}


def _asking(request: int, time: int) -> RequestId:
    return RequestId(f"{name_of(request)}.{time + 1}")


def name_of(request: int) -> str:
    """Give a request's letter."""
    return "ABCDEFGH"[request]


def role_of(life: Incarnation) -> int:
    """Give the role that a life has."""
    return ROLES.index(life.partition("-")[0])
