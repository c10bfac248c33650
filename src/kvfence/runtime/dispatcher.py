"""The gateway's side of the workers: turns requests into attempts and tokens back into generations.

Implements ``generation.Generations`` on a ``GatewayNode``. Not for: HTTP (``kvfence.gateway``) or starting
workers (``supervisor.py``), which tells this who lives.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.ids import AttemptId, Incarnation, RequestId, TenantId, new_incarnation
from kvfence.core.invariant import InvariantBroken
from kvfence.core.limits import Limits
from kvfence.core.request import Request, without_content
from kvfence.driver.loop import NodeLoop
from kvfence.protocol.admission import Capacity, Load, Refuse, decide, fits
from kvfence.protocol.commands import Command, Deliver, Finish, Resubmit, Send, StartTimer
from kvfence.protocol.events import ClientGone, Event, PeerGone, PeerSilent, PeerUp, Received, Submit, TokensArrived
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.handoff import GatewayHandoff
from kvfence.protocol.messages import Dispatch, EndReason, Envelope, Floor, Offer
from kvfence.protocol.node import Lives
from kvfence.protocol.routing import Placement
from kvfence.runtime.generation import EndOut, Generations, TokensOut, WorkerState
from kvfence.runtime.owners import Owners
from kvfence.runtime.placement import Peer, place_on
from kvfence.runtime.resend import Resender
from kvfence.runtime.salts import Salter
from kvfence.runtime.stages import Journeys
from kvfence.runtime.timers import Timers
from kvfence.trace.recorder import Recorder
from kvfence.wire.codec import frame_codec
from kvfence.wire.control import ControlSocket
from kvfence.wire.frames import Facts, Frame, Prompt, TokenRow, Tokens

FLOOR_S = 0.5
"""How often the floor travels and unanswered messages are looked at."""

NOWHERE = Placement(Incarnation(""), Incarnation(""))
"""Where an attempt goes that no pair of workers can take: the node refuses it."""


class Generation(Struct):
    """One open request and what it has generated; neither is ever logged. ``index``: among those asked with it."""

    request: Request
    queue: "asyncio.Queue[tuple[int, TokensOut | EndOut]]"
    index: int = 0
    generated: list[int] = []

    __repr__ = without_content

    def tell(self, item: TokensOut | EndOut) -> None:
        """Pass something on to whoever reads."""
        self.queue.put_nowait((self.index, item))


class Dispatcher(Generations):
    """Dispatches generations to the current workers.

    Owner:
        One event loop. ``failure`` is what broke it, a bug here; then every generation has been ended, none is
        admitted, and ``failed`` is set.
    """

    def __init__(self, control_dir: Path, rules: Rules, limits: Limits, recorder: Recorder) -> None:
        self.incarnation = incarnation = new_incarnation()
        self.limits = limits
        self.control = ControlSocket(control_dir, incarnation)
        self.codec = frame_codec()
        self.peers: dict[Incarnation, Peer] = {}
        self.recorder = recorder
        self.journeys = Journeys()
        self.owners = Owners()
        self._salter = Salter()
        self._rules = rules
        self._generations: dict[RequestId, Generation] = {}
        self._tenants: dict[RequestId, TenantId] = {}
        self._arrived: dict[AttemptId, TokenRow] = {}
        self._states: tuple[WorkerState, ...] = ()
        self._loop: NodeLoop[GatewayNode] | None = None
        self._resender = Resender(self._feed)
        self._timers = Timers(self._feed_timer)
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self._closed = False
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- what the supervisor tells

    def start(self, capacity: Capacity) -> None:
        """Make the node, then listen."""
        node = GatewayNode(Lives(self.incarnation), capacity)
        self._loop = NodeLoop(self._rules, node, None, self._execute, self.journeys.watch(self.recorder.step))
        self.recorder.begin(self._rules, "gateway", node)
        for part in (self._listen(), self._tick()):
            self._tasks.add(asyncio.get_running_loop().create_task(self.watched(part)))

    async def watched(self, part: Coroutine[None, None, None]) -> None:
        """Run a part of this or of the supervisor; what breaks it breaks all of it, loudly."""
        try:
            await part
        except (Exception, InvariantBroken) as error:  # noqa: BLE001 - nobody else awaits this task
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._end_all()
        self.failed.set()

    def _end_all(self) -> None:
        for request in list(self._generations):
            self._end(request, EndOut(EndReason.SHUTDOWN))

    def _end(self, request: RequestId, end: EndOut) -> None:
        """Give a generation its end; one that has had it is left alone."""
        generation = self._forget(request)
        if generation is not None:
            generation.tell(end)

    def _forget(self, request: RequestId) -> Generation | None:
        generation = self._generations.pop(request, None)
        if not self._generations:
            self._idle.set()
        return generation

    def meet(self, peer: Incarnation, role: str, num_pages: int) -> None:
        """A worker is ready for attempts."""
        self.peers[peer] = Peer(peer, role, num_pages)
        self._feed(PeerUp(peer, writes=False))

    def hear(self, peer: Incarnation, quarantined_pages: int) -> None:
        """A worker told how many of its pages nobody can have."""
        if peer in self.peers:
            self.peers[peer].quarantined_pages = quarantined_pages

    def lose(self, peer: Incarnation, *, reaped: bool) -> None:
        """A worker is gone."""
        self.peers.pop(peer, None)
        self.control.forget(peer)
        self._feed(PeerGone(peer, reaped))

    def set_healthy(self, peer: Incarnation, *, healthy: bool) -> None:
        """A worker may be given attempts, or may not."""
        if peer in self.peers:
            self.peers[peer].healthy = healthy

    def fall_silent(self, peer: Incarnation) -> None:
        """A worker's heartbeat has stopped: it is given nothing, and its clients are not left waiting."""
        self.set_healthy(peer, healthy=False)
        self._feed(PeerSilent(peer))

    def set_states(self, states: tuple[WorkerState, ...]) -> None:
        """What ``/health`` shows."""
        self._states = states

    async def drain(self, timeout_s: float) -> None:
        """Admit no more; wait until every open request has ended, at most so long; the rest end with an error."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        finally:
            self._end_all()

    async def close(self) -> None:
        """End every generation, admit no other, and stop listening."""
        self._closed = True
        self._end_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.control.close()
        self.recorder.close()

    # ---- what the gateway asks

    @property
    def capacity(self) -> Capacity:
        """Context and the smallest pool of each role."""
        return self._node_loop.node.capacity

    @property
    def draining(self) -> bool:
        """Is no request admitted any more?"""
        return self._draining or self._closed or self.failure is not None

    @property
    def decisions(self) -> dict[tuple[str, str, str], int]:
        """Guard answers at this gateway."""
        return self._node_loop.decisions if self._loop is not None else {}

    @property
    def handoffs(self) -> tuple[GatewayHandoff, ...]:
        """Every open attempt."""
        return tuple(self._node_loop.node.handoffs.values()) if self._loop is not None else ()

    def workers(self) -> tuple[WorkerState, ...]:
        """Every worker, ready or not."""
        return self._states

    async def generate_together(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[tuple[int, TokensOut | EndOut], None]:
        """Admit all or none, then yield what comes for any; see ``Generations.generate_together``."""
        refusal = self._admit(requests)
        if refusal is not None:
            yield 0, refusal
            return
        queue: asyncio.Queue[tuple[int, TokensOut | EndOut]] = asyncio.Queue()
        for index, request in enumerate(requests):
            self._generations[request.id] = Generation(request, queue, index)
            self._tenants[request.id] = request.tenant
            self.journeys.mark(request.id, "admitted")
        self._idle.clear()
        try:
            for request in requests:
                self._submit(request)
            num_open = len(requests)
            while num_open:
                index, item = await queue.get()
                num_open -= isinstance(item, EndOut)
                yield index, item
        finally:
            for request in requests:
                if self._forget(request.id) is not None:
                    self._feed(ClientGone(request.id))

    def leave(self, request: RequestId) -> None:
        """Cancel one of several; see ``Generations.leave``."""
        generation = self._forget(request)
        if generation is not None:
            generation.tell(EndOut(EndReason.CANCELLED))
            self._feed(ClientGone(request))

    def _admit(self, requests: Sequence[Request]) -> EndOut | None:
        """Refuse for load, counting requests of one tenant together. What does not fit goes on to the node, whose guard
        refuses it for good."""
        if self.draining:
            return EndOut(EndReason.SHUTDOWN)
        first, num_more = requests[0], len(requests) - 1
        if not all(fit.holds for fit in fits(self.capacity, len(first.token_ids), first.max_tokens)):
            return None
        handoffs = self._node_loop.node.handoffs.values()
        of_tenant = sum(self._tenants.get(handoff.request) == first.tenant for handoff in handoffs)
        ready = self._place(len(first.token_ids)) is not NOWHERE
        answer = decide(self.limits, Load(len(handoffs) + num_more, of_tenant + num_more, ready))
        return EndOut(answer.reason, (), answer.retry_after_s) if isinstance(answer, Refuse) else None

    def _place(self, num_tokens: int) -> Placement:
        node = self._node_loop.node
        return place_on(self.peers.values(), node.handoffs.values(), node.capacity, num_tokens) or NOWHERE

    def _submit(self, request: Request) -> None:
        num_tokens, remaining_ns = len(request.token_ids), int(request.deadline_s * 1e9)
        on = self._place(num_tokens)
        salt = self._salter.salt(request)
        self._feed(Submit(request.id, num_tokens, request.max_tokens, on.prefill, on.decode, remaining_ns, salt))

    def _resubmit(self, command: Resubmit) -> list[Event]:
        """Place the attempt that goes on anew; what its predecessor had on its way is dropped."""
        self._arrived.pop(command.old, None)
        on = self._place(command.num_tokens)
        return [
            Submit(
                request=command.request,
                num_tokens=command.num_tokens,
                max_tokens=command.max_tokens,
                prefill=on.prefill,
                decode=on.decode,
                remaining_ns=command.remaining_ns,
                salt=command.salt,
                timer=command.timer,
            )
        ]

    # ---- the node

    @property
    def _node_loop(self) -> NodeLoop[GatewayNode]:
        if self._loop is None:
            raise RemoteProtocolError("the workers are still starting")
        return self._loop

    def _feed(self, event: Event) -> None:
        self._node_loop.feed(event)

    def _feed_timer(self, event: Event) -> None:
        if self._closed:
            return
        try:
            self._feed(event)
        except (Exception, InvariantBroken) as error:  # noqa: BLE001 - an error in a timer would only be printed
            self._fail(error)

    def _execute(self, command: Command) -> Iterable[Event] | None:
        match command:
            case Send(to=to, message=message):
                payload = self._prompt(message) if isinstance(message, Dispatch) else None
                if isinstance(message, Offer):
                    self._note_owner(message.attempt)
                envelope = Envelope(self.incarnation, to, message)
                self.control.send(to, self.codec.encode(Frame(self.incarnation, envelope, payload)))
            case StartTimer(attempt=attempt, remaining_ns=remaining_ns):
                self._timers.start(attempt, remaining_ns)
            case Deliver(request=request, attempt=attempt):
                self._deliver(request, self._arrived.pop(attempt, None))
            case Resubmit():
                return self._resubmit(command)
            case Finish(request=request, reason=reason):
                self._finish(request, reason)
        return None

    def _note_owner(self, attempt: AttemptId) -> None:
        tenant = self._tenants.get(self._node_loop.node.handoffs[attempt].request)
        if tenant is not None:
            self.owners.note(attempt, tenant)

    def _prompt(self, message: Dispatch) -> Prompt | None:
        handoff = self._node_loop.node.handoffs[message.attempt]
        generation = self._generations.get(handoff.request)
        if generation is None:
            return None  # answered meanwhile: prefill refuses a dispatch without a prompt at intake
        token_ids = [*generation.request.token_ids, *generation.generated]
        return Prompt(token_ids, generation.request.sampling, len(generation.generated))

    def _deliver(self, request: RequestId, row: TokenRow | None) -> None:
        generation = self._generations.get(request)
        if generation is not None and row is not None:
            num_cached = 0 if generation.generated else row.num_cached  # of the client's prompt, no later attempt's
            generation.generated += row.token_ids
            generation.tell(TokensOut(tuple(row.token_ids), tuple(row.logprobs), num_cached))

    def _finish(self, request: RequestId, reason: EndReason) -> None:
        generation = self._generations.get(request)
        if generation is None:
            return
        sums = fits(self.capacity, len(generation.request.token_ids), generation.request.max_tokens)
        self._end(request, EndOut(reason, sums if reason is EndReason.DOES_NOT_FIT else ()))

    # ---- the wire

    async def _listen(self) -> None:
        while True:
            raw = await self.control.receive()
            try:
                frame = self.codec.decode(raw)
            except RemoteProtocolError:
                continue
            if frame.envelope is not None:
                self._learn(getattr(frame.envelope.message, "attempt", None), frame.facts)
                self._feed(Received(frame.envelope))
            elif isinstance(frame.payload, Tokens):
                for row in frame.payload.rows:
                    self._learn(row.attempt, frame.facts)
                    self._arrived[row.attempt] = row
                    self._feed(TokensArrived(frame.sender, row.attempt, row.first_index, len(row.token_ids)))
                    self._arrived.pop(row.attempt, None)

    def _learn(self, attempt: AttemptId | None, facts: Facts | None) -> None:
        if attempt is not None and facts is not None:
            self.journeys.learn(attempt, facts)

    async def _tick(self) -> None:
        while True:
            node = self._node_loop.node
            for peer in self.peers:
                envelope = Envelope(self.incarnation, peer, Floor(node.floor))
                self.control.send(peer, self.codec.encode(Frame(self.incarnation, envelope)))
            self._resender.tick(time.monotonic(), tuple(node.handoffs))
            self._timers.keep({handoff.timer for handoff in node.handoffs.values()})
            open_requests = {handoff.request for handoff in node.handoffs.values()} | set(self._generations)
            self._tenants = {r: tenant for r, tenant in self._tenants.items() if r in open_requests}
            self.recorder.flush()
            await asyncio.sleep(FLOOR_S)
