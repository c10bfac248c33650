"""What no order can change happens at once: fewer worlds, and the same properties broken or not.

A reduction for every guard on: a message that its receiver will answer in one way whenever it comes, a floor that
passes what nobody speaks of any more, a write nothing can disturb, are not interleaved with all else. Each kind
commutes with everything that can happen beside it, now and later; ``tests/prove/test_reductions.py`` compares whole
graphs with theirs, edge by edge. A way to a broken property is a way still, no shortest one.
"""

from kvfence.core.errors import SettingsError
from kvfence.core.ids import AttemptId
from kvfence.core.invariant import InvariantBroken, require
from kvfence.protocol.events import FloorMoved
from kvfence.protocol.messages import Abort, Envelope, Floor
from kvfence.protocol.transitions import DecodePhase, Fence, GatewayPhase, PrefillPhase
from kvfence.prove import actions
from kvfence.prove.bounds import BITS, Bounds
from kvfence.prove.model import Edge, Model
from kvfence.prove.world import DECODE, GATEWAY, PREFILL, Around, World, role_of

NETWORK = World._fields.index("network")

Phase = GatewayPhase | PrefillPhase | DecodePhase

_OVER = (DecodePhase.REVOKED, DecodePhase.CLOSED, None)
ALIKE: frozenset[tuple[str, Phase | None]] = frozenset(
    (
        *(("Closed", phase) for phase in _OVER),
        *(("Sent", phase) for phase in _OVER),
        *(("Failed", phase) for phase in (*_OVER, DecodePhase.GRANTED)),
        ("Drained", DecodePhase.CLOSED),
        ("Drained", None),
        *(("Commit", phase) for phase in (PrefillPhase.SENT, PrefillPhase.CLOSED, None)),
        *(("Abort", phase) for phase in (PrefillPhase.FAILED, PrefillPhase.SENT, PrefillPhase.CLOSED)),
        ("Ended", None),
        ("Grant", None),
        ("Refused", None),
    )
)
"""Messages, and how far their receiver is with the attempt (None: none): what comes of them waits for nobody."""

BELOW = frozenset({"Abort", "Cancel", "Offer"})
"""Messages of an attempt that its receiver does not know and whose floor has passed."""

OF_MESSAGES = frozenset({"loss", "duplicate", "confuse"})
OF_WRITES = frozenset(
    {"stall", "corrupt", "hasty", "misdirect", "misdirect-early", "restart-prefill", "restart-decode"}
)
DEATHS = {"restart-prefill": PREFILL, "restart-decode": DECODE}
OF_SUBMITS = frozenset({"retry", "silence", "restart-prefill", "restart-decode"})


class Settled:
    """Takes what is settled at once. Holds: ``_heard``, by process, network and floor, what both become."""

    def __init__(self, model: Model) -> None:
        bounds = model.bounds
        if problems := unsettled(bounds):
            raise SettingsError(problems)
        self.model = model
        self.once_each = all(asked.max_tokens == 1 for asked in bounds.requests)
        self.none = model.tables.writes.id_of(())
        self._heard: dict[tuple[int, int, int, int, int], tuple[int, int, int]] = {}
        self._left: dict[int, frozenset[str]] = {}
        self._mortal: dict[int, frozenset[int]] = {}
        self._lowest: dict[int, int] = {}

    def of(self, world: World) -> World:
        """Give a world in which nothing is settled but has not happened."""
        while True:
            left = self._left.get(world.around)
            if left is None:
                left = self._look(world.around)
            after = world
            if not left & OF_MESSAGES:
                after = self._hear(after)
            if not left & OF_WRITES:
                after = self._land(after)
            if self.once_each and not left & OF_SUBMITS:
                after = self._submit(after)
            if after == world:
                return world
            world = after

    def _look(self, around: int) -> frozenset[str]:
        left = self._left[around] = _left(self.model.bounds, self.model.tables.around[around])
        self._mortal[around] = frozenset(role for name, role in DEATHS.items() if name in left)
        return left

    # ---- messages and floors

    def _hear(self, world: World) -> World:
        """Let each process hear what it may; a message that makes one do something outside itself goes last."""
        after, acting = list(world), -1
        floor = self.model.tables.gateway(world.gateway).floor
        for role in (GATEWAY, PREFILL, DECODE):
            key = (role, after[role], after[NETWORK], floor, world.around)
            heard = self._heard.get(key)
            if heard is None:
                heard = self._heard[key] = self._hears(World(*after), role, floor)
            after[role], after[NETWORK], acts = heard
            acting = max(acting, acts)
        return World(*after) if acting < 0 else self.model.deliver(World(*after), acting).world

    def _hears(self, world: World, role: int, floor: int) -> tuple[int, int, int]:
        while True:
            edge = self._message(world, role) or self._token(world, role) or self._floor(world, role, floor)
            if edge is None:
                return world[role], world.network, self._acting(world, role)
            changed = {place for place, before in enumerate(world) if edge.world[place] != before}
            require(changed <= {role, NETWORK}, "who hears what is settled does nothing outside itself")
            world = edge.world

    def _message(self, world: World, role: int) -> Edge | None:
        tables = self.model.tables
        for message in tables.networks[world.network].messages:
            if self.model.role_of(message) == role and self._is_settled(world, role, message):
                if not tables.steps.deliver(world[role], message).commands:
                    return self.model.deliver(world, message)
        return None

    def _acting(self, world: World, role: int) -> int:
        """Give a message that makes its receiver begin the next prompt, or -1."""
        messages = self.model.tables.networks[world.network].messages
        mine = (each for each in messages if self.model.role_of(each) == role)
        return next((each for each in mine if self._is_settled(world, role, each)), -1)

    def _is_settled(self, world: World, role: int, number: int) -> bool:
        """Is it alike whenever it comes, and is its answer, where it has one, there before anybody dies?"""
        if not self._is_alike(world, role, number):
            return False
        tables = self.model.tables
        outcome = tables.steps.deliver(world[role], number)
        if outcome.broken:
            return False
        envelope = tables.steps.messages[number]
        if role == GATEWAY or not (outcome.sends or isinstance(envelope.message, Abort)):
            return True
        sender = envelope.sender
        may_die = {role_of(sender), role} & self._mortal[world.around]
        return not may_die and sender in tables.around[world.around].lives

    def _is_alike(self, world: World, role: int, number: int) -> bool:
        tables = self.model.tables
        envelope, node = tables.steps.messages[number], tables.steps.processes[world[role]].node
        lives = tables.around[world.around].lives
        if envelope.receiver != lives[role]:
            return True
        if envelope.sender not in node.lives.peers:
            return envelope.sender not in lives
        attempt = _attempt_of(envelope)
        handoff = node.handoffs.get(attempt)
        name = type(envelope.message).__name__
        if handoff is None and name in BELOW:
            return node.lives.below_floor(attempt)
        return (name, None if handoff is None else handoff.phase) in ALIKE

    def _token(self, world: World, role: int) -> Edge | None:
        """Drop the oldest token where its attempt is over."""
        tokens = self.model.tables.networks[world.network].tokens
        if role != GATEWAY or not tokens or tokens[0].attempt in self.model.tables.gateway(world.gateway).handoffs:
            return None
        return next(edge for edge in actions.token(self.model, world) if not edge.broken)

    def _floor(self, world: World, role: int, floor: int) -> Edge | None:
        """Hear a floor that the gateway had: nothing of an attempt below it is on its way, and all are over here."""
        if role == GATEWAY:
            return None
        node = self.model.tables.steps.processes[world[role]].node
        life = self.model.tables.around[world.around].lives[GATEWAY]
        over = (DecodePhase.CLOSED, PrefillPhase.CLOSED)
        open_here = (attempt.counter for attempt, each in node.handoffs.items() if each.phase not in over)
        counter = min(floor, self._lowest_in(world.network), *open_here)
        if counter <= max(node.lives.floor(life), 1):
            return None
        return self.model.feed(world, role, FloorMoved(life, counter), "floor", (role, counter))

    def _lowest_in(self, network: int) -> int:
        lowest = self._lowest.get(network)
        if lowest is None:
            value, messages = self.model.tables.networks[network], self.model.tables.steps.messages
            counters = [_attempt_of(messages[each]).counter for each in value.messages]
            counters += [token.attempt.counter for token in value.tokens]
            lowest = self._lowest[network] = min(counters, default=1 << 62)
        return lowest

    # ---- writes and clients

    def _land(self, world: World) -> World:
        """Land the writes of batches that nobody has given up."""
        if world.writes == self.none:
            return world
        life = self.model.tables.around[world.around].lives[DECODE]
        for edge in actions.land(self.model, world):
            if edge.kind == "land" and not edge.broken and edge.about[0].target == life:
                return edge.world
        return world

    def _submit(self, world: World) -> World:
        """Let the next client ask, where nobody is about to hear who lives."""
        around = self.model.tables.around[world.around]
        if around.dying or any(around.notices):
            return world
        return next((edge.world for edge in actions.submit(self.model, world) if not edge.broken), world)


def _attempt_of(envelope: Envelope) -> AttemptId:
    message = envelope.message
    if isinstance(message, Floor):
        raise InvariantBroken("floors travel with heartbeats: none is a message of a world")
    return message.attempt


def _left(bounds: Bounds, around: Around) -> frozenset[str]:
    """Name the faults that can still happen."""
    if around.used.bit_count() >= bounds.faults_max:
        return frozenset()
    return frozenset(name for name in bounds.faults if not around.used & BITS[name])


def unsettled(bounds: Bounds) -> list[str]:
    """Say why in a world like this nothing can be taken as settled."""
    reasons = {
        "every guard must be on": not bounds.rules.absent,
        "writes must land in address order": bounds.in_order,
        "the fence must be the writer's exit": bounds.fence is Fence.PEER_EXIT,
        "no mistake may be there from the start": not bounds.setups,
        "prefill may cache nothing": not bounds.cached_lots_max,
    }
    return [f"--settled: {reason}" for reason, holds in reasons.items() if not holds]
