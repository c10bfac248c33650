"""Who lives: the three processes, how they meet, die, are reaped and are replaced; what a supervisor does.

Not for: choosing what happens next (``world.py``).
"""

from collections.abc import Callable

from kvfence.core.ids import FORMER_LIFE, AttemptId, BatchId, Incarnation, RequestId, SessionId
from kvfence.core.tags import PageTag
from kvfence.driver.loop import Stepper
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import Event, FloorMoved, PeerGone, PeerSilent, PeerUp, SessionRebuilt, TokensArrived
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import EndReason, Envelope, Message
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.routing import Placement
from kvfence.protocol.transitions import Fence
from kvfence.sim.decode import Decode
from kvfence.sim.gateway import Gateway, Outside
from kvfence.sim.landing import Landing
from kvfence.sim.memory import CORRUPT, HALVES, Cell, Memory, PageWrite, Target
from kvfence.sim.network import Flight, Network
from kvfence.sim.prefill import Prefill
from kvfence.sim.process import DRIFTED, LAYOUT, Surroundings

CACHED_LOTS_MAX = 3

Finish = Callable[[RequestId, EndReason], None]
AnyProcess = Gateway | Prefill | Decode


class Cluster:
    """The living processes. ``dying``: killed writers that are not reaped yet."""

    def __init__(self, around: Surroundings, stepper: Stepper, finish: Finish) -> None:
        self.around = around
        self.network = Network()
        self.landing = Landing(around)
        self.memory = Memory(around.setup.capacity.decode_pages)
        self.dying: list[Prefill] = []
        self._stepper = stepper
        self._finish = finish
        self._num_lives = 0
        self._num_sessions = 0
        self._roles: dict[Incarnation, str] = {}
        self.decode = self._new_decode()
        self.prefill = self._new_prefill()
        self.gateway = self._new_gateway()
        for process in self.processes:
            self._introduce(process)
        self._post_former_writes()

    @property
    def processes(self) -> tuple[AnyProcess, ...]:
        """The living, gateway first."""
        return (self.gateway, self.prefill, self.decode)

    # ---- births

    def _incarnation(self, role: str) -> Incarnation:
        self._num_lives += 1
        incarnation = Incarnation(f"{self._num_lives:032x}")
        self._roles[incarnation] = role
        return incarnation

    def _new_decode(self) -> Decode:
        setup = self.around.setup
        lives = Lives(self._incarnation("decode"))
        node = DecodeNode(lives, setup.capacity, LAYOUT, setup.fence, new_pool(setup.capacity.decode_pages))
        node = start_decode(setup.rules, node)
        return Decode(self.around, node, self.send, self._stepper, self.memory)

    def _new_prefill(self) -> Prefill:
        setup = self.around.setup
        lives = Lives(self._incarnation("prefill"))
        layout = DRIFTED if setup.faults.layout_drift else LAYOUT
        pool = new_pool(setup.capacity.prefill_pages)
        lots_max = CACHED_LOTS_MAX if setup.prefix_reuse else 0
        node = PrefillNode(lives, setup.capacity, layout, pool, setup.batch_pages_max, lots_max)
        return Prefill(self.around, node, self.send, self._stepper)

    def _new_gateway(self) -> Gateway:
        node = GatewayNode(Lives(self._incarnation("gateway")), self.around.setup.capacity)
        return Gateway(self.around, node, self.send, self._stepper, Outside(self._finish, self._place))

    def _place(self) -> Placement:
        return Placement(self.prefill.incarnation, self.decode.incarnation)

    def _introduce(self, process: AnyProcess) -> None:
        for other in self.processes:
            if other is not process:
                process.loop.feed(_meeting(process, other))
                other.loop.feed(_meeting(other, process))

    def _post_former_writes(self) -> None:
        """Writes of a life before this one are still on their way into decode's pages."""
        for number in range(self.around.setup.faults.former_writes):
            source = Cell()
            source.head = PageTag(FORMER_LIFE, number, number)
            source.body = [CORRUPT] * HALVES
            target = Target(FORMER_LIFE, FORMER_LIFE, SessionId("former"), -1, number % len(self.memory))
            self.around.writes.append(PageWrite(AttemptId(FORMER_LIFE, number), BatchId(0), target, source))

    # ---- messages

    def send(self, sender: Incarnation, to: Incarnation, message: Message) -> None:
        """Put a message on its way to the role that ``to`` plays or played."""
        self.network.send(self._roles[to], Envelope(sender, to, message))

    def deliver(self, flight: Flight) -> None:
        """Hand a message to whoever lives at its address now."""
        self._at(flight.address).receive(flight.envelope)

    def _at(self, role: str) -> AnyProcess:
        return next(process for process in self.processes if process.role == role)

    def deliver_token(self, *, keep: bool = False) -> None:
        """Hand the oldest token to its gateway; with ``keep`` it stays and comes once more."""
        tokens = self.decode.tokens
        arrived: TokensArrived = tokens[0] if keep else tokens.pop(0)
        gateway = self.gateway
        if arrived.attempt.gateway == gateway.incarnation:
            gateway.loop.feed(arrived)

    def move_floors(self) -> None:
        """Tell both workers the gateway's floor."""
        gateway = self.gateway
        floor = FloorMoved(gateway.incarnation, gateway.loop.node.floor)
        self.prefill.loop.feed(floor)
        self.decode.loop.feed(floor)

    # ---- deaths and fences

    def tell(self, event: Event) -> None:
        """Tell every living process."""
        for process in self.processes:
            process.loop.feed(event)

    def fence_start(self) -> None:
        """Give decode the proof that no former life writes any more; afterwards that is true."""
        former = {self.decode.incarnation}
        self.landing.drop(lambda write: write.target.decode not in former)
        if self.around.setup.fence is Fence.NEW_SESSION:
            self.rebuild_session()
        else:
            self.decode.loop.feed(PeerGone(FORMER_LIFE, reaped=True))

    @property
    def start_is_fenced(self) -> bool:
        """Has decode had that proof, or need it none?"""
        return 0 not in self.decode.loop.node.pool.quarantined

    def rebuild_session(self) -> None:
        """Destroy and rebuild decode's receiving engine."""
        self._num_sessions += 1
        self.landing.closed_sessions |= {"", "former", f"session-{self._num_sessions - 1}"}
        self.landing.drop(lambda write: write.target.session in self.landing.closed_sessions)
        self.decode.loop.feed(SessionRebuilt(SessionId(f"session-{self._num_sessions}")))

    def fall_silent(self, process: AnyProcess) -> None:
        """The gateway is told that a worker is silent, which goes on all the same."""
        self.gateway.loop.feed(PeerSilent(process.incarnation))

    def kill_prefill(self, *, reaped: bool) -> None:
        """Prefill dies and a successor is born; unless reaped, what it posted goes on landing for now."""
        old = self.prefill
        self.prefill = self._new_prefill()
        if reaped:
            self._end_writes(old)
        else:
            self.dying.append(old)
        self._lose(old.incarnation, reaped=reaped)
        self._introduce(self.prefill)

    def reap(self) -> None:
        """The oldest killed writer's process has ended, and its writes with it."""
        old = self.dying.pop(0)
        self._end_writes(old)
        self._lose(old.incarnation, reaped=True)

    def _end_writes(self, old: Prefill) -> None:
        if self.around.setup.fence is not Fence.NEW_SESSION:
            self.landing.drop(lambda write: write.target.writer == old.incarnation)

    def _lose(self, peer: Incarnation, *, reaped: bool) -> None:
        for process in self.processes:
            if peer in process.loop.node.lives.peers | process.loop.node.lives.writers:
                process.loop.feed(PeerGone(peer, reaped))

    def kill_decode(self) -> None:
        """Decode dies; its successor takes over the same memory, which prefill may still write."""
        old = self.decode
        self.decode = self._new_decode()
        self._lose(old.incarnation, reaped=True)
        self._introduce(self.decode)

    def kill_gateway(self) -> None:
        """The gateway dies: its clients' connections with it."""
        old = self.gateway
        self.gateway = self._new_gateway()
        for request in list(old.open):
            self._finish(request, EndReason.WORKER_LOST)
        self._lose(old.incarnation, reaped=True)
        self._introduce(self.gateway)


def _meeting(process: AnyProcess, other: AnyProcess) -> PeerUp:
    return PeerUp(other.incarnation, writes=isinstance(process, Decode) and isinstance(other, Prefill))
