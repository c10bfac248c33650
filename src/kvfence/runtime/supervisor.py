"""Starts, watches, reaps and replaces the worker processes, and introduces them to each other.

It alone can prove that a writer is gone: ``PeerDied(reaped=True)`` is sent only after the process was waited for,
and that is the fence of shared memory. Every prefill worker meets every decode worker; the death of one changes
nothing for pairs that it is not part of. Read ``life.py`` first. Not for: what workers do.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from structlog.typing import FilteringBoundLogger

from kvfence.core.errors import CapacityError, KvfenceError
from kvfence.core.settings import Role
from kvfence.protocol.admission import Capacity
from kvfence.runtime.capacity import settle_capacity
from kvfence.runtime.dispatcher import Dispatcher
from kvfence.runtime.generation import WorkerState
from kvfence.runtime.life import Life, Plan, Slot, slots_of
from kvfence.runtime.lifeline import Beat, Broken, Loaded, MeetPeer, Report, Start, describe
from kvfence.runtime.tally import add_beats
from kvfence.trace.recorder import Recorder, TraceFile
from kvfence.wire.control import make_private_directory

RESTART_PAUSE_S = (0.0, 0.5, 2.0, 5.0, 15.0)
"""Pauses before the restarts of a slot that keeps failing; the last one repeats."""
LISTEN_S = 0.5
"""How long a watch waits for a heartbeat at a time."""
PROVEN_S = 30.0
"""A life of this length ends the row of failures that lengthens restart pauses."""
SERVING = ("ready", "silent")


class Supervisor:
    """Keeps one worker alive in each slot.

    Owner:
        One event loop. ``failed`` is set when something here broke, a bug; ``failure`` says what, and whoever
        serves ends.
    """

    def __init__(self, plan: Plan, log: FilteringBoundLogger | None = None) -> None:
        self.plan = plan
        self._log = log if log is not None else structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        self.control_dir = make_private_directory()
        recorder = Recorder(_gateway_trace(plan), time.monotonic_ns)
        self.dispatcher = Dispatcher(self.control_dir, plan.rules, plan.settings.limits, recorder)
        self.slots = slots_of(plan.settings.workers)
        self.live: dict[Slot, Life] = {}
        self.restarts = dict.fromkeys(self.slots, 0)
        self.failures = dict.fromkeys(self.slots, 0)
        self.capacity: Capacity | None = None
        self.pools: dict[Slot, Loaded] = {}
        self._past = dict.fromkeys(self.slots, Beat())
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def failed(self) -> asyncio.Event:
        """Set once the dispatcher or a watch has broken."""
        return self.dispatcher.failed

    @property
    def failure(self) -> str:
        """What broke, if anything did."""
        return describe(self.dispatcher.failure) if self.dispatcher.failure is not None else ""

    def of(self, role: Role) -> list[Life]:
        """Give the current lives of a role, by slot."""
        return [life for slot, life in sorted(self.live.items()) if slot.role == role]

    # ---- start and stop

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> Capacity:
        """Start all workers side by side, compare their layouts and pools, and introduce them.

        Raises:
            WorkerError: one did not load; its own words are in the message.
            CapacityError: a pool cannot hold one context; the message says which flag mends it.
        """
        launches = [asyncio.create_task(self._launch(slot)) for slot in self.slots]
        try:
            await asyncio.wait(launches, return_when=asyncio.FIRST_EXCEPTION)
        finally:  # one failed, or whoever started us was cancelled
            for launch in launches:
                launch.cancel()
            ends = await asyncio.gather(*launches, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        progress("models loaded")
        self._settle()
        self.dispatcher.start(self._capacity)
        for slot in self.slots:
            self._enlist(self.live[slot])
        return self._capacity

    @property
    def _capacity(self) -> Capacity:
        if self.capacity is None:
            raise CapacityError("the workers' pools are not known yet")
        return self.capacity

    def _settle(self) -> None:
        """Compare the pools; of a slot that is being restarted, the one it had and will have again."""
        self.pools |= {slot: life.loaded for slot, life in self.live.items() if life.loaded is not None}
        prefill = [pool for slot, pool in self.pools.items() if slot.role == "prefill"]
        decode = [pool for slot, pool in self.pools.items() if slot.role == "decode"]
        self.capacity = settle_capacity(prefill, decode, self.plan.context_tokens, check=self.plan.check_capacity)

    async def stop(self) -> None:
        """End every worker in order; whoever does not end is killed. Nothing is left behind."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.dispatcher.close()
        await asyncio.gather(*(life.end() for life in self.live.values()))
        shutil.rmtree(self.control_dir, ignore_errors=True)

    # ---- one life

    async def _launch(self, slot: Slot) -> None:
        """Start the next life of a slot; its pool is as large as its predecessor's, so that the capacity stays."""
        life = self.live[slot] = Life(slot)
        before = self.pools.get(slot)
        num_pages = before.num_pages if before is not None else self.plan.pool_pages[slot.role]
        await life.launch(self.plan, self.control_dir, num_pages)

    def _enlist(self, life: Life) -> None:
        """Let a loaded worker serve: tell it its capacity and peers, and its peers of it."""
        life.order(Start(self._capacity))
        life.state = "ready"
        life.order(MeetPeer(self.dispatcher.incarnation, "gateway", writes=False))
        for other in self.live.values():
            if other.role != life.role and other.state in SERVING:
                other.meet(life)
                life.meet(other)
        num_pages = life.loaded.num_pages if life.loaded is not None else 0
        self.dispatcher.meet(life.incarnation, life.role, num_pages)
        self._show()
        task = asyncio.get_running_loop().create_task(self.dispatcher.watched(self._watch(life)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- watching

    async def _watch(self, life: Life) -> None:
        """Read heartbeats until the worker dies or is silent too long; then reap and replace it."""
        started = time.monotonic()
        try:
            while life.silent_s <= self.plan.settings.workers.heartbeat_timeout_s:
                report = await _listen(life)
                if isinstance(report, Broken):
                    life.broken = report.message
                elif isinstance(report, Beat):
                    life.beat = report
                    self.dispatcher.hear(life.incarnation, report.states.get("quarantined", 0))
                    if time.monotonic() - started > PROVEN_S:
                        self.failures[life.slot] = 0
                    self._recycle_if_starved(life)
                self._judge(life)
        except EOFError:
            pass
        else:
            self._log.warning(
                "worker_silent", worker=life.slot.name, incarnation=life.incarnation[:8], silent_s=life.silent_s
            )
        await self._replace(life)

    def _judge(self, life: Life) -> None:
        healthy = life.silent_s < self.plan.settings.workers.silent_timeout_s
        state = "ready" if healthy else "silent"
        if life.state != state:
            life.state = state
            if healthy:
                self.dispatcher.set_healthy(life.incarnation, healthy=True)
            else:
                self.dispatcher.fall_silent(life.incarnation)
            self._show()

    def _recycle_if_starved(self, life: Life) -> None:
        """Kill a prefill worker where a pool is short of pages that only exits free: the one whose exit frees most.

        Short: more than a quarter of the pool waits so, or whoever is next in line needs some of it. One at a time,
        so that the others serve on; a slot that keeps failing is not waited for.
        """
        beat, num_pages = life.beat, life.loaded.num_pages if life.loaded is not None else 0
        starved = beat.fence_pages * 4 > num_pages or beat.wanted_pages > num_pages - beat.fence_pages
        if not beat.fence_pages or not starved:
            return
        prefills = self.of("prefill")
        if any(other.state not in SERVING and self.failures[other.slot] <= 1 for other in prefills):
            return
        ready = [other for other in prefills if other.state == "ready" and other.runs]
        suspects = [other for other in ready if beat.freed_by(other.incarnation) > (0, 0)]
        if suspects:
            suspect = max(suspects, key=lambda other: (beat.freed_by(other.incarnation), other.slot))
            self._log.warning("prefill_recycled", worker=suspect.slot.name, fence_pages=beat.fence_pages)
            self.failures[suspect.slot] = 0  # our own doing: its successor starts without a pause
            suspect.kill()

    async def _replace(self, life: Life) -> None:
        """Kill, reap, tell everyone who met it, start anew."""
        life.state = "dead"
        self.dispatcher.set_healthy(life.incarnation, healthy=False)
        self._show()
        status = await life.reap()
        self._log.warning(
            "worker_reaped",
            worker=life.slot.name,
            incarnation=life.incarnation[:8],
            status=status,
            broken=life.broken,
        )
        self._past[life.slot] = add_beats(self._past[life.slot], life.beat)
        life.beat = Beat()
        await life.end()
        for other in self.live.values():
            if other.state in SERVING:
                other.lose(life.incarnation)
        self.dispatcher.lose(life.incarnation, reaped=True)
        await self._restart(life.slot)

    async def _restart(self, slot: Slot) -> None:
        while not self._stopping:
            self.restarts[slot] += 1
            await asyncio.sleep(RESTART_PAUSE_S[min(self.failures[slot], len(RESTART_PAUSE_S) - 1)])
            self.failures[slot] += 1
            try:
                await self._launch(slot)
                self._settle()
            except KvfenceError as error:
                self._log.error("worker_restart_failed", worker=slot.name, error=str(error))
                self.live[slot].state = "dead"
                await self.live[slot].end()
                continue
            self._enlist(self.live[slot])
            return

    # ---- what others see

    def _show(self) -> None:
        states = []
        for slot, life in sorted(self.live.items()):
            num_tokens = life.loaded.num_pages * life.loaded.page_size if life.loaded is not None else 0
            states.append(
                WorkerState(
                    slot.role, life.incarnation[:8], life.state, num_tokens, self.restarts[slot], worker=slot.name
                )
            )
        self.dispatcher.set_states(tuple(states))

    def beats(self) -> dict[Slot, Beat]:
        """The last heartbeat of each worker."""
        return {slot: life.beat for slot, life in self.live.items()}

    def totals(self) -> dict[Slot, Beat]:
        """The last heartbeat of each worker, with what its predecessors in the slot counted."""
        return {slot: add_beats(self._past[slot], life.beat) for slot, life in self.live.items()}


async def _listen(life: Life) -> Report | None:
    """Wait for a worker's next report; None, and so much more silence, where none came.

    Silence counts only while it is listened to: after a time in which this process was itself stopped or starved,
    nobody is taken for silent.

    Raises:
        EOFError: the worker is gone.
    """
    if life.lifeline is None:
        raise EOFError("no lifeline")
    try:
        async with asyncio.timeout(LISTEN_S):
            report, _ = await life.lifeline.receive()
    except TimeoutError:
        life.silent_s += LISTEN_S
        return None
    life.silent_s = 0.0
    return report


def _gateway_trace(plan: Plan) -> TraceFile | None:
    folder = plan.settings.workers.trace
    return TraceFile(Path(folder) / "gateway.ndjson", plan.settings.limits.trace_bytes_max) if folder else None
