"""Who lives: a gateway and workers of both roles; how they meet, die, are reaped and replaced, as by a supervisor.

Not for: choosing what happens next (``world.py``).
"""

from collections.abc import Callable, Sequence

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
from kvfence.sim.memory import CORRUPT, HALVES, Cell, PageWrite, Target
from kvfence.sim.network import Flight, Network
from kvfence.sim.prefill import Prefill
from kvfence.sim.process import DRIFTED, LAYOUT, Surroundings

CACHED_LOTS_MAX = 3

Finish = Callable[[RequestId, EndReason], None]
AnyProcess = Gateway | Prefill | Decode


class Cluster:
    """The living processes. ``dying``: killed writers that are not reaped yet. ``memories``: of decode's places."""

    def __init__(self, around: Surroundings, stepper: Stepper, finish: Finish) -> None:
        self.around = around
        self.network = Network()
        self.landing = Landing(around)
        self.memories = [around.new_memory(around.setup.capacity.decode_pages) for _ in range(around.setup.num_decode)]
        self.dying: list[Prefill] = []
        self._stepper = stepper
        self._finish = finish
        self._num_lives = 0
        self._num_sessions = 0
        self._addresses: dict[Incarnation, str] = {}
        self.decodes = [self._new_decode(number) for number in range(around.setup.num_decode)]
        self.prefills = [self._new_prefill(number) for number in range(around.setup.num_prefill)]
        self.gateway = self._new_gateway()
        for process in self.processes:
            self._introduce(process)
        self._post_former_writes()

    @property
    def processes(self) -> tuple[AnyProcess, ...]:
        """The living, gateway first."""
        return (self.gateway, *self.workers)

    @property
    def workers(self) -> tuple[Prefill | Decode, ...]:
        """The living workers, prefill first."""
        return (*self.prefills, *self.decodes)

    @property
    def prefill(self) -> Prefill:
        """The first prefill worker; often the only one."""
        return self.prefills[0]

    @property
    def decode(self) -> Decode:
        """The first decode worker; often the only one."""
        return self.decodes[0]

    def target_of(self, write: PageWrite) -> Decode:
        """The decode worker that lives where a write lands."""
        return self.decodes[self._number_of(write.target.decode)]

    def _number_of(self, life: Incarnation) -> int:
        return 0 if life == FORMER_LIFE else int(self._addresses[life].rpartition("-")[2])

    # ---- births

    def _incarnation(self, role: str, number: int = 0) -> Incarnation:
        self._num_lives += 1
        incarnation = Incarnation(f"{self._num_lives:032x}")
        self._addresses[incarnation] = f"{role}-{number}"
        return incarnation

    def _new_decode(self, number: int) -> Decode:
        setup = self.around.setup
        lives = Lives(self._incarnation("decode", number))
        node = DecodeNode(lives, setup.capacity, LAYOUT, setup.fence, new_pool(setup.capacity.decode_pages))
        node = start_decode(setup.rules, node)
        return Decode(self.around, node, self.send, self._stepper, self.memories[number])

    def _new_prefill(self, number: int) -> Prefill:
        setup = self.around.setup
        lives = Lives(self._incarnation("prefill", number))
        layout = DRIFTED if setup.faults.layout_drift else LAYOUT
        pool = new_pool(setup.capacity.prefill_pages)
        lots_max = CACHED_LOTS_MAX if setup.prefix_reuse else 0
        node = PrefillNode(lives, setup.capacity, layout, pool, setup.batch_pages_max, lots_max)
        return Prefill(self.around, node, self.send, self._stepper)

    def _new_gateway(self) -> Gateway:
        node = GatewayNode(Lives(self._incarnation("gateway")), self.around.setup.capacity)
        return Gateway(self.around, node, self.send, self._stepper, Outside(self._finish, self._place))

    def _place(self) -> Placement:
        prefill, decode = self.prefills[self.any_of(self.prefills)], self.decodes[self.any_of(self.decodes)]
        return Placement(prefill.incarnation, decode.incarnation)

    def any_of(self, workers: Sequence[object]) -> int:
        """Draw one of several; of one there is nothing to draw."""
        return self.around.rng.randrange(len(workers)) if self.around.rng is not None and len(workers) > 1 else 0

    def _introduce(self, process: AnyProcess) -> None:
        for other in self.processes:
            if other.role != process.role:
                process.loop.feed(_meeting(process, other))
                other.loop.feed(_meeting(other, process))

    def _post_former_writes(self) -> None:
        """Writes of a life before this one are still on their way into decode's pages."""
        for number in range(self.around.setup.faults.former_writes):
            source = Cell()
            source.head = PageTag(FORMER_LIFE, number, number)
            source.body = [CORRUPT] * HALVES
            target = Target(FORMER_LIFE, FORMER_LIFE, SessionId("former"), -1, number % len(self.memories[0]))
            self.around.writes.append(PageWrite(AttemptId(FORMER_LIFE, number), BatchId(0), target, source))

    # ---- messages

    def send(self, sender: Incarnation, to: Incarnation, message: Message) -> None:
        """Put a message on its way to the place that ``to`` has or had."""
        self.network.send(self._addresses[to], self.around.through_wire(Envelope(sender, to, message)))

    def deliver(self, flight: Flight) -> None:
        """Hand a message to whoever lives at its address now."""
        self._at(flight.address).receive(flight.envelope)

    def _at(self, address: str) -> AnyProcess:
        return next(process for process in self.processes if self._addresses[process.incarnation] == address)

    def deliver_token(self, decode: Decode, *, keep: bool = False) -> None:
        """Hand a decode worker's oldest token to its gateway; with ``keep`` it stays and comes once more."""
        tokens = decode.tokens
        arrived: TokensArrived = tokens[0] if keep else tokens.pop(0)
        gateway = self.gateway
        if arrived.attempt.gateway == gateway.incarnation:
            gateway.loop.feed(arrived)

    def move_floors(self) -> None:
        """Tell every worker the gateway's floor."""
        gateway = self.gateway
        floor = FloorMoved(gateway.incarnation, gateway.loop.node.floor)
        for worker in self.workers:
            worker.loop.feed(floor)

    # ---- deaths and fences

    def tell(self, event: Event) -> None:
        """Tell every living process."""
        for process in self.processes:
            process.loop.feed(event)

    def fence_start(self) -> None:
        """Give a decode worker the proof that no former life writes any more; afterwards that is true."""
        number = next(number for number, decode in enumerate(self.decodes) if not _is_fenced(decode))
        decode = self.decodes[number]
        self.landing.drop(
            lambda w: self._number_of(w.target.decode) == number and w.target.decode != decode.incarnation
        )
        if self.around.setup.fence is Fence.NEW_SESSION:
            self.rebuild_session(number)
        else:
            decode.loop.feed(PeerGone(FORMER_LIFE, reaped=True))

    @property
    def start_is_fenced(self) -> bool:
        """Has every decode worker had that proof, or need it none?"""
        return all(map(_is_fenced, self.decodes))

    def rebuild_session(self, number: int = 0) -> None:
        """Destroy and rebuild a decode worker's receiving engine."""
        self._num_sessions += 1
        decode = self.decodes[number]
        self.landing.closed_sessions |= {"", "former", decode.loop.node.session}
        self.landing.drop(lambda write: write.target.session in self.landing.closed_sessions)
        decode.loop.feed(SessionRebuilt(SessionId(f"session-{self._num_sessions}")))

    def fall_silent(self, process: AnyProcess) -> None:
        """The gateway is told that a worker is silent, which goes on all the same."""
        self.gateway.loop.feed(PeerSilent(process.incarnation))

    def kill_prefill(self, number: int = 0, *, reaped: bool) -> None:
        """A prefill worker dies and a successor is born; unless reaped, what it posted goes on landing for now."""
        old = self.prefills[number]
        self.prefills[number] = self._new_prefill(number)
        if reaped:
            self._end_writes(old)
        else:
            self.dying.append(old)
        self._lose(old.incarnation, reaped=reaped)
        self._introduce(self.prefills[number])

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

    def kill_decode(self, number: int = 0) -> None:
        """A decode worker dies; its successor takes over the same memory, which prefill may still write."""
        old = self.decodes[number]
        self.decodes[number] = self._new_decode(number)
        self._lose(old.incarnation, reaped=True)
        self._introduce(self.decodes[number])

    def kill_gateway(self) -> None:
        """The gateway dies: its clients' connections with it."""
        old = self.gateway
        self.gateway = self._new_gateway()
        for request in list(old.open):
            self._finish(request, EndReason.WORKER_LOST)
        self._lose(old.incarnation, reaped=True)
        self._introduce(self.gateway)


def _is_fenced(decode: Decode) -> bool:
    return 0 not in decode.loop.node.pool.quarantined


def _meeting(process: AnyProcess, other: AnyProcess) -> PeerUp:
    return PeerUp(other.incarnation, writes=isinstance(process, Decode) and isinstance(other, Prefill))
