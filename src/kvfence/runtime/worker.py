"""What both workers share: a node in a loop over real pages, control messages, timers, beats.

Read ``prefill_worker.py`` or ``decode_worker.py`` next; ``process.py`` starts one.
"""

import asyncio
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvfence.core.errors import KvfenceError, RemoteProtocolError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.invariant import require
from kvfence.core.layout import KVLayout
from kvfence.core.pages import PageState
from kvfence.driver.loop import NodeLoop
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import require_digest
from kvfence.kv.storage import MemoryFile, PoolBuffer, zero_pages
from kvfence.models.executor import Executor, PassRow
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Command, Move, Send, StartTimer
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import Event, PeerGone, PeerUp
from kvfence.protocol.messages import Ended, Envelope, Failed, Sent
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import held_lots
from kvfence.protocol.transitions import PageMove
from kvfence.runtime.drawing import draw_pool
from kvfence.runtime.lifeline import Beat, Begin, Lifeline, MeetPeer, Order, PeerDied
from kvfence.runtime.resend import Resender
from kvfence.runtime.samplers import Samplers
from kvfence.runtime.sessions import uses_mooncake
from kvfence.runtime.stages import StageClock
from kvfence.runtime.timers import Timers
from kvfence.trace.recorder import Recorder, TraceFile
from kvfence.wire.codec import frame_codec
from kvfence.wire.control import ControlSocket
from kvfence.wire.frames import FirstToken, Frame

N = TypeVar("N", PrefillNode, DecodeNode)

BEAT_S = 0.5
RELEASING = (PageMove.RELEASE, PageMove.FENCE)


class Worker(ABC, Generic[N]):
    """One worker process's node, pool and model.

    Owner:
        The event loop's thread changes the node, the ledger and every table; passes and page writes run in
        threads of their own and report back as events.
    """

    def __init__(self, begin: Begin, lifeline: "Lifeline[Order]", executor: Executor, memory: MemoryFile) -> None:
        self.begin = begin
        self.lifeline = lifeline
        self.executor = executor
        self.memory = memory
        self.layout: KVLayout = executor.layout
        require_digest(self.layout)
        self.pool = PoolBuffer(memory.buffer, self.layout, begin.pool_pages)
        self.table = BatchTable(self.pool)
        self.model_thread = ThreadPoolExecutor(1, "model")
        executor.bind(self.views())
        self.control = ControlSocket(Path(begin.control_dir), begin.incarnation)
        self.codec = frame_codec()
        self.outcomes: dict[str, int] = {}
        self.counters = dict.fromkeys(("frames_refused", "passes", "pages_compared", "model_errors", "beats_lost"), 0)
        self.wake = asyncio.Event()
        self.samplers = Samplers(begin.model_path, executor, self._wake_soon)
        self.recorder = Recorder(_trace_file(begin), time.monotonic_ns)
        self.stages = StageClock()
        self.loop: NodeLoop[N]
        self.ledger: NumpyLedger
        self.resender: Resender
        self.timers: Timers
        self.tasks: asyncio.TaskGroup
        self.event_loop: asyncio.AbstractEventLoop
        self._checked: N | None = None

    @property
    def incarnation(self) -> Incarnation:
        """This life."""
        return self.begin.incarnation

    def views(self) -> list[Any]:
        """Give the pool as the executor's ``bind`` takes it."""
        from kvfence.kv.host import host_views

        return host_views(self.pool, self.layout)

    def start(self, capacity: Capacity) -> None:
        """Make the node once the capacity of both roles is known."""
        node = self.make_node(capacity)
        start_state = PageState.FREE if node.pool.num_free else PageState.QUARANTINED
        self.ledger = ledger = NumpyLedger(self.pool.num_pages, start_state)
        self.loop = NodeLoop(self.begin.rules, node, ledger, self.execute, self.stages.watch(self.recorder.step))
        self.recorder.begin(self.begin.rules, self.begin.role, node)
        self.event_loop = asyncio.get_running_loop()
        self.resender = Resender(self.loop.feed)
        self.timers = Timers(self._feed_soon)

    @abstractmethod
    def make_node(self, capacity: Capacity) -> N:
        """Make the node of this role."""

    @abstractmethod
    def carry_out(self, command: Command) -> Iterable[Event] | None:
        """Carry out a command of this role."""

    @abstractmethod
    def receive(self, frame: Frame, envelope: Envelope) -> Event:
        """Note a frame's payload and give the node's event."""

    @abstractmethod
    async def work(self) -> None:
        """Run passes for ever."""

    @abstractmethod
    def unanswered(self) -> Iterable[AttemptId]:
        """Attempts with a message that is not answered yet."""

    def meet(self, order: MeetPeer, fd: int | None) -> None:
        """Introduce a peer to the node."""
        if fd is not None:
            os.close(fd)
        self.loop.feed(PeerUp(order.peer, order.writes))

    def lose(self, order: PeerDied) -> None:
        """Tell the node that a peer is gone."""
        self.control.forget(order.peer)
        self.loop.feed(PeerGone(order.peer, order.reaped))

    def execute(self, command: Command) -> Iterable[Event] | None:
        """Carry out any command."""
        match command:
            case Move(move=move, pages=pages):
                if move in RELEASING and self.begin.settings.pool.zero_on_release:
                    zero_pages(self.pool, pages)
                return None
            case StartTimer(attempt=attempt, remaining_ns=remaining_ns):
                self.timers.start(attempt, remaining_ns)
                return None
        return self.carry_out(command)

    def _feed_soon(self, event: Event) -> None:
        """Feed an event in a task: an error in it ends the worker, where one in a timer would only be printed."""
        self.tasks.create_task(self._feed(event))

    async def _feed(self, event: Event) -> None:
        self.loop.feed(event)
        self.wake.set()

    def _wake_soon(self) -> None:
        """Wake the passes, from another thread."""
        self.event_loop.call_soon_threadsafe(self.wake.set)

    async def _compute(self, rows: list[PassRow]) -> list[int | None] | None:
        """Run a pass in the model's thread; None where it failed: stderr says where, never the message."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.model_thread, self.executor.run, rows)
        except (RuntimeError, KvfenceError) as error:
            self.counters["model_errors"] += 1
            sys.stderr.write(f"{self.begin.role}: a pass failed with {type(error).__name__} at:\n")
            traceback.print_list(traceback.extract_tb(error.__traceback__))
            return None

    def _bad_pages(self) -> dict[AttemptId, list[int]]:
        """Compare the heads of all pages in the table; give those that are not as expected, by attempt."""
        bad: dict[AttemptId, list[int]] = {}
        self.counters["pages_compared"] += len(self.table)
        for position in self.table.compare():
            (attempt,) = self.table.sequences_at(position.reshape(1))
            if isinstance(attempt, AttemptId):
                bad.setdefault(attempt, []).extend(self.table.pages_at(position.reshape(1)))
        return bad

    def post(self, frame: Frame, to: Incarnation) -> None:
        """Send a frame to a peer."""
        self.control.send(to, self.codec.encode(frame))

    def frame(self, command: Send, payload: FirstToken | None = None) -> Frame:
        """Address a message from this life to the peer's; what ends a stage elsewhere takes the facts along."""
        message = command.message
        facts = self.stages.facts(message.attempt) if isinstance(message, (Sent, Failed, Ended)) else None
        return Frame(self.incarnation, Envelope(self.incarnation, command.to, message), payload, facts)

    async def listen(self) -> None:
        """Feed every control frame to the node, for ever."""
        while True:
            raw = await self.control.receive()
            try:
                frame = self.codec.decode(raw)
            except RemoteProtocolError:
                self.counters["frames_refused"] += 1
                continue
            if frame.envelope is None:
                self.hear(frame)
            else:
                self._learn(frame, frame.envelope)
                self.loop.feed(self.receive(frame, frame.envelope))
            self.wake.set()

    def hear(self, frame: Frame) -> None:
        """Take a frame without a message."""

    def upkeep(self) -> None:
        """Do whatever else is due with each heartbeat."""

    def _learn(self, frame: Frame, envelope: Envelope) -> None:
        attempt = getattr(envelope.message, "attempt", None)
        if frame.facts is not None and attempt in self.loop.node.handoffs:
            self.stages.learn(attempt, frame.facts)

    async def obey(self) -> None:
        """Carry out the supervisor's orders until its lifeline ends."""
        while True:
            order, fd = await self.lifeline.receive()
            match order:
                case MeetPeer():
                    self.meet(order, fd)
                case PeerDied():
                    self.lose(order)
            self.wake.set()

    async def beat(self) -> None:
        """Report every half second, and repeat what is unanswered."""
        while True:
            self._check_ledger()
            try:
                self.lifeline.send(self._beat())
            except BlockingIOError:  # the supervisor is stopped and reads nothing: it learns no less from the next
                self.counters["beats_lost"] += 1
            self.resender.tick(time.monotonic(), self.unanswered())
            self.timers.keep({a for a, h in self.loop.node.handoffs.items() if h.phase.value != "closed"})
            self.stages.keep(self.loop.node.handoffs)
            self.recorder.flush()
            self.upkeep()
            await asyncio.sleep(BEAT_S)

    def _check_ledger(self) -> None:
        """Require, whenever idle, that the node's lots and its page table say the same (``ledger-agrees``)."""
        node, ledger = self.loop.node, self.loop.ledger
        if node is self._checked or ledger is None or self._num_open():
            return
        wrong = ledger.disagreements(held_lots(node))
        require(not wrong, f"{self.begin.role}'s node and page table disagree about pages {wrong[:8]}")
        self._checked = node

    def _beat(self) -> Beat:
        ledger, pool = self.loop.ledger, self.loop.node.pool
        states = {} if ledger is None else {state.value: count for state, count in ledger.counts().items()}
        asked = sorted(self.loop.decisions.items())
        decisions = tuple((guard, place, answer, count) for (guard, place, answer), count in asked)
        answered = {a for a, h in self.loop.node.handoffs.items() if getattr(h, "abort_answered", False)}
        fences: dict[tuple[Incarnation, ...], int] = {}
        # Over Mooncake the owner of the pages fences them itself: nobody need exit for that.
        for entry in () if uses_mooncake(self.begin.settings) else pool.quarantined.values():
            if not entry.drains or entry.attempt in answered:
                writers = tuple(sorted(entry.writers))
                fences[writers] = fences.get(writers, 0) + len(entry.lot.pages)
        counters = {**self.counters, "frames_dropped": self.control.dropped, "traces_lost": int(self.recorder.broken)}
        drawn = None if self.lifeline.behind else draw_pool(self.ledger, self.loop.node)
        return Beat(states, self.outcomes, decisions, tuple(fences.items()), self._wanted_pages(), counters, drawn)

    def _wanted_pages(self) -> int:
        """Pages that whoever waits first needs at once."""
        node = self.loop.node
        if not node.waiting:
            return 0
        num_pages = node.capacity.num_pages(node.handoffs[node.waiting[0]].num_tokens)
        return num_pages + 1 if self.begin.role == "decode" else num_pages

    def _num_open(self) -> int:
        return sum(handoff.phase.value != "closed" for handoff in self.loop.node.handoffs.values())


def _trace_file(begin: Begin) -> TraceFile | None:
    folder = begin.settings.workers.trace
    if not folder:
        return None
    path = Path(folder) / f"{begin.role}-{begin.incarnation[:8]}.ndjson"
    return TraceFile(path, begin.settings.limits.trace_bytes_max)
