"""The closed world: everything that can happen next in a state, one thing at a time.

*Ordinary* actions are what drivers do: deliver, pass, land, verify, tell a floor. *Faults* are drawn from a budget.
*Patience* is what happens only when nothing ordinary can: messages said again, pages fenced by the supervisor, time.

Not for: deciding. ``protocol.step`` decides; ``search.py`` goes through what this gives.
"""

from collections import defaultdict
from typing import Any, NamedTuple

from kvfence.core.ids import FORMER_LIFE, BatchId, Incarnation, SessionId
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import BatchEnded, Event
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.lots import new_pool
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import broken_in
from kvfence.prove.bounds import Bounds
from kvfence.prove.effects import Draft
from kvfence.prove.pages import CORRUPT, EMPTY, Cell, Write
from kvfence.prove.processes import Decode, Gateway, Prefill
from kvfence.prove.sharing import received
from kvfence.prove.world import DECODE, GATEWAY, PREFILL, Around, Clients, Network, Tables, World, role_of

LAYOUT = "layout"
DRIFTED = "another layout"


class Edge(NamedTuple):
    """One thing that can happen: its kind, what it is about, the world after it, and the properties it breaks."""

    kind: str
    about: Any
    world: World
    broken: tuple[str, ...] = ()


class Model:
    """One closed world within its bounds. ``memories``: what each kind of action led to (``locality.py``)."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.tables = Tables(bounds)
        self.silence = self.tables.networks.id_of(Network())
        self.memories: defaultdict[int, dict[Any, Any]] = defaultdict(dict)
        self._joined: dict[tuple[int, int], int] = {}
        self._delivered: dict[tuple[int, int], int] = {}
        self._roles: dict[int, int] = {}
        self.first = self._first()

    # ---- the start

    def _first(self) -> World:
        """Everybody has met; decode does not know yet that no former life writes."""
        bounds, tables = self.bounds, self.tables
        lives = (Incarnation("gateway-1"), Incarnation("prefill-1"), Incarnation("decode-1"))
        pools = bounds.capacity
        writes: tuple[Write, ...] = ()
        if "former-writes" in bounds.setups:
            source = Cell((FORMER_LIFE, 0, 0), CORRUPT)
            write = Write(0, FORMER_LIFE, FORMER_LIFE, SessionId("0"), 0, -1, source, source.head, live=False)
            writes = (write,)
        return World(
            tables.steps.processes.id_of(Gateway(GatewayNode(_knowing(lives, GATEWAY), pools))),
            tables.steps.processes.id_of(self.new_prefill(lives)),
            tables.steps.processes.id_of(self.new_decode(lives)),
            tables.networks.id_of(Network()),
            tables.writes.id_of(writes),
            tables.cells.id_of((EMPTY,) * pools.prefill_pages),
            tables.cells.id_of((EMPTY,) * pools.decode_pages),
            tables.clients.id_of(Clients((), (0,) * len(bounds.requests), ((),) * len(bounds.requests))),
            tables.around.id_of(Around(lives)),
        )

    def new_prefill(self, lives: tuple[Incarnation, ...]) -> Prefill:
        """A prefill process that has met the others."""
        bounds, capacity = self.bounds, self.bounds.capacity
        layout = DRIFTED if "drift" in bounds.setups else LAYOUT
        pool = new_pool(capacity.prefill_pages)
        lots_max = bounds.cached_lots_max
        knowing = _knowing(lives, PREFILL)
        return Prefill(PrefillNode(knowing, capacity, layout, pool, bounds.batch_pages_max, lots_max))

    def new_decode(self, lives: tuple[Incarnation, ...]) -> Decode:
        """A decode process that has met the others; its pages are as its rules have them at start."""
        capacity = self.bounds.capacity
        node = DecodeNode(_knowing(lives, DECODE), capacity, LAYOUT, self.bounds.fence, new_pool(capacity.decode_pages))
        return Decode(start_decode(self.bounds.rules, node))

    def broken_at_rest(self, world: World) -> tuple[str, ...]:
        """Name the properties that must hold where nothing is left to happen, and do not."""
        return tuple(broken_in(self.tables.view(world), at_rest=True))

    # ---- the common ways from one world to the next

    def deliver(self, world: World, message: int, *, keep: bool = False) -> Edge:
        """Hand a message to whoever lives at its address now; with ``keep`` a copy of it stays."""
        tables = self.tables
        role = self.role_of(message)
        if role == PREFILL and self.bounds.cached_lots_max:
            outcome = tables.steps.feed(world[role], received(tables, world, message))
        else:
            outcome = tables.steps.deliver(world[role], message)
        network = world.network if keep else self.without(world.network, message)
        if outcome.commands:
            draft = Draft(tables, world._replace(network=network))
            draft.take(role, outcome)
            return Edge("deliver", message, *draft.done())
        if outcome.sends:
            network = self.adding(network, outcome.sends)
        after = list(world)
        after[role], after[3] = outcome.process, network
        return Edge("deliver", message, World(*after), outcome.broken)

    def feed(self, world: World, role: int, event: Event, kind: str, about: Any) -> Edge:
        """Step one process with an event."""
        draft = Draft(self.tables, world)
        draft.take(role, self.tables.steps.feed(world[role], event))
        return Edge(kind, about, *draft.done())

    def role_of(self, message: int) -> int:
        """Give the role that a message is for."""
        role = self._roles.get(message)
        if role is None:
            role = self._roles[message] = role_of(self.tables.steps.messages[message].receiver)
        return role

    def without(self, network: int, message: int) -> int:
        """Take a message off its way."""
        after = self._delivered.get((network, message))
        if after is None:
            value = self.tables.networks[network]
            messages = list(value.messages)
            messages.remove(message)
            after = self.tables.networks.id_of(value._replace(messages=tuple(messages)))
            self._delivered[network, message] = after
        return after

    def adding(self, network: int, sends: tuple[int, ...]) -> int:
        """Put messages on their way."""
        return self.joined(network, self.tables.networks.id_of(Network(tuple(sorted(sends)))))

    def joined(self, network: int, said: int) -> int:
        """Put on its way what another network holds."""
        after = self._joined.get((network, said))
        if after is None:
            old, new = self.tables.networks[network], self.tables.networks[said]
            both = Network(tuple(sorted((*old.messages, *new.messages))), (*old.tokens, *new.tokens))
            after = self._joined[network, said] = self.tables.networks.id_of(both)
        return after

    def end_batch(self, world: World, counter: int, *, given_up: bool = False, kind: str) -> Edge:
        """Report a batch whose writes have all ended, or that is given up while some may still land."""
        draft = Draft(self.tables, world)
        node = self.tables.prefill(world.prefill).node
        attempt = next(a for a in node.handoffs if a.counter == counter)
        batch: BatchId = node.handoffs[attempt].batches[0][0]
        writes = [write for write in draft.writes if write.live and write.attempt == counter]
        for write in writes:
            draft.change(write, write._replace(live=False))
        success = not given_up and not any(write.refused for write in writes)
        event = BatchEnded(attempt, batch, success, source_quiet=not given_up)
        draft.take(PREFILL, self.tables.steps.feed(world.prefill, event))
        return Edge(kind, counter, *draft.done())


def _knowing(lives: tuple[Incarnation, ...], role: int) -> Lives:
    others = frozenset(life for other, life in enumerate(lives) if other != role)
    writers = frozenset({lives[PREFILL]}) if role == DECODE else frozenset()
    return Lives(lives[role], others, writers)
