"""Starts, watches, reaps and replaces the worker processes, and introduces them to each other.

It alone can prove that a writer is gone: ``PeerDied(reaped=True)`` is sent only after the process was waited for,
and that is the fence of shared memory. Not for: what workers do.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from kvfence.core.errors import CapacityError, KvfenceError, ModelError, WorkerError
from kvfence.core.ids import Incarnation, new_incarnation
from kvfence.core.settings import Role, Settings
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.runtime.capacity import check_layouts, settle_capacity
from kvfence.runtime.dispatcher import Dispatcher
from kvfence.runtime.generation import WorkerState
from kvfence.runtime.lifeline import (
    Beat,
    Begin,
    Broken,
    Lifeline,
    Loaded,
    MeetPeer,
    Order,
    PeerDied,
    PoolOffer,
    Report,
    Start,
    describe,
)
from kvfence.trace.recorder import Recorder, TraceFile
from kvfence.wire.control import make_private_directory

WORKER_MODULES: dict[Role, str] = {
    "prefill": "kvfence.runtime.prefill_worker",
    "decode": "kvfence.runtime.decode_worker",
}
UNHEALTHY_S = 3.0
"""Silence after which no new attempt is placed on a worker."""
RESTART_PAUSE_S = (0.0, 0.5, 2.0, 5.0, 15.0)
"""Pauses before the restarts of a role that keeps failing; the last one repeats."""
STOP_S = 5.0
PROVEN_S = 30.0
"""A life of this length ends the row of failures that lengthens restart pauses."""
SERVING = ("ready", "silent")


class Plan(Struct, frozen=True):
    """What to run. ``modules``: the worker programs; tests and demonstrations run others with the same lifeline."""

    settings: Settings
    model_path: str
    rules: Rules
    pool_pages: dict[Role, int]
    context_tokens: int
    modules: dict[Role, str] = field(default_factory=WORKER_MODULES.copy)
    check_capacity: bool = True


class Process:
    """One life of one worker."""

    def __init__(self, role: Role, incarnation: Incarnation) -> None:
        self.role: Role = role
        self.incarnation = incarnation
        self.child: asyncio.subprocess.Process | None = None
        self.lifeline: Lifeline[Report] | None = None
        self.loaded: Loaded | None = None
        self.pool_fd: int | None = None
        self.last_beat = 0.0
        self.beat = Beat()
        self.broken = ""
        self.state = "starting"


class Supervisor:
    """Keeps one worker of each role alive.

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
        self.live: dict[Role, Process] = {}
        self.pool_pages = dict(plan.pool_pages)
        self.restarts: dict[Role, int] = {"prefill": 0, "decode": 0}
        self.failures: dict[Role, int] = {"prefill": 0, "decode": 0}
        self.capacity: Capacity | None = None
        self.pools: dict[Role, Loaded] = {}
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

    # ---- start and stop

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> Capacity:
        """Start both roles side by side, compare their layouts and pools, and introduce them.

        Raises:
            WorkerError: one did not load; its own words are in the message.
            CapacityError: a pool cannot hold one context; the message says which flag mends it.
        """
        roles: tuple[Role, Role] = ("decode", "prefill")
        launches = [asyncio.create_task(self._launch(role)) for role in roles]
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
        for role in roles:
            self._enlist(self.live[role])
        return self._capacity

    @property
    def _capacity(self) -> Capacity:
        if self.capacity is None:
            raise CapacityError("the workers' pools are not known yet")
        return self.capacity

    def _settle(self) -> None:
        """Compare the pools; of a role that is being restarted, the one it had and will have again."""
        for role, process in self.live.items():
            if process.loaded is not None:
                self.pools[role] = process.loaded
        prefill, decode = self.pools["prefill"], self.pools["decode"]
        check_layouts(prefill, decode)
        self.capacity = settle_capacity(prefill, decode, self.plan.context_tokens, check=self.plan.check_capacity)

    async def stop(self) -> None:
        """End every worker in order; whoever does not end is killed. Nothing is left behind."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.dispatcher.close()
        await asyncio.gather(*(self._end(process) for process in self.live.values()))
        shutil.rmtree(self.control_dir, ignore_errors=True)

    async def _end(self, process: Process) -> None:
        if process.lifeline is not None:
            process.lifeline.close()
        child = process.child
        if child is not None and child.returncode is None:
            try:
                async with asyncio.timeout(STOP_S):
                    await child.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        if process.pool_fd is not None:
            os.close(process.pool_fd)
            process.pool_fd = None

    # ---- one life

    async def _launch(self, role: Role) -> None:
        """Start a process and wait until its model is loaded."""
        process = Process(role, new_incarnation())
        self.live[role] = process
        ours, theirs = socket.socketpair()
        command = (sys.executable, "-m", self.plan.modules[role], str(theirs.fileno()))
        process.lifeline = Lifeline(ours, Report)  # type: ignore[arg-type]
        environment = worker_environment(self.plan)
        try:
            process.child = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            raise WorkerError(role, f"no process can be started: {error.strerror}") from None
        finally:
            theirs.close()
        begin = Begin(
            role,
            process.incarnation,
            str(self.control_dir),
            self.plan.model_path,
            self.plan.settings,
            self.plan.rules,
            self.pool_pages[role],
        )
        timeout_s = self.plan.settings.workers.ready_timeout_s
        try:
            process.lifeline.send(begin)
            async with asyncio.timeout(timeout_s):
                await self._loaded(process)
        except TimeoutError:
            raise WorkerError(role, f"did not load within {timeout_s} s; see --ready-timeout-s") from None
        except OSError as error:
            raise WorkerError(role, f"could not be given its orders: {error.strerror}") from None

    async def _loaded(self, process: Process) -> None:
        if process.lifeline is None:
            raise WorkerError(process.role, "has no lifeline")
        try:
            report, fd = await process.lifeline.receive()
        except EOFError:
            status = await process.child.wait() if process.child is not None else None
            raise WorkerError(
                process.role, f"died at start with status {status}; see its output above", status
            ) from None
        if isinstance(report, Broken):
            raise _error_of(process.role, report.message)
        if not isinstance(report, Loaded):
            raise WorkerError(process.role, "spoke out of turn at start")
        process.loaded, process.pool_fd, process.state = report, fd, "loaded"
        self.pool_pages[process.role] = report.num_pages  # a successor's pool is as large, so the capacity stays

    def _enlist(self, process: Process) -> None:
        """Let a loaded worker serve: tell it its capacity and peers, and its peers of it."""
        self._order(process, Start(self._capacity))
        process.last_beat = time.monotonic()
        process.state = "ready"
        self._order(process, MeetPeer(self.dispatcher.incarnation, "gateway", writes=False))
        other = self.live["decode" if process.role == "prefill" else "prefill"]
        if other is not process and other.state in SERVING:
            self._introduce(process, other)
            self._introduce(other, process)
        self.dispatcher.meet(process.incarnation, process.role)
        self._show()
        task = asyncio.get_running_loop().create_task(self.dispatcher.watched(self._watch(process)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _introduce(self, newcomer: Process, to: Process) -> None:
        writes = newcomer.role == "prefill"
        offer, fd = None, None
        if newcomer.role == "decode" and newcomer.loaded is not None:
            num_pages = newcomer.loaded.num_pages
            offer, fd = PoolOffer(num_pages, num_pages * newcomer.loaded.record_bytes), newcomer.pool_fd
        self._order(to, MeetPeer(newcomer.incarnation, newcomer.role, writes, offer), fd)

    def _order(self, process: Process, order: Order, fd: int | None = None) -> None:
        """Send an order; a worker that cannot take it is beyond orders: its watch reaps and replaces it."""
        try:
            if process.lifeline is not None:
                process.lifeline.send(order, fd)
        except OSError:
            if process.child is not None and process.child.returncode is None:
                process.child.kill()

    # ---- watching

    async def _watch(self, process: Process) -> None:
        """Read heartbeats until the worker dies or is silent too long; then reap and replace it."""
        silent_max_s = self.plan.settings.workers.heartbeat_timeout_s
        lifeline = process.lifeline
        if lifeline is None:
            return
        started = time.monotonic()
        while True:
            silent_s = time.monotonic() - process.last_beat
            self._judge(process, silent_s)
            if silent_s > silent_max_s:
                self._log.warning(
                    "worker_silent", role=process.role, incarnation=process.incarnation[:8], silent_s=silent_s
                )
                break
            try:
                async with asyncio.timeout(0.5):
                    report, _ = await lifeline.receive()
            except TimeoutError:
                continue
            except EOFError:
                break
            if isinstance(report, Beat):
                process.beat, process.last_beat = report, time.monotonic()
                if process.last_beat - started > PROVEN_S:
                    self.failures[process.role] = 0
                self._recycle_if_starved(process)
            elif isinstance(report, Broken):
                process.broken = report.message
        await self._replace(process)

    def _judge(self, process: Process, silent_s: float) -> None:
        healthy = silent_s < UNHEALTHY_S
        state = "ready" if healthy else "silent"
        if process.state != state:
            process.state = state
            self.dispatcher.set_healthy(process.incarnation, healthy=healthy)
            self._show()

    def _recycle_if_starved(self, process: Process) -> None:
        """Kill prefill where more than a quarter of a pool, or whoever is next in line, waits for its exit alone."""
        if process.loaded is None or not process.beat.fence_pages:
            return
        prefill, num_pages = self.live["prefill"], process.loaded.num_pages
        fence_pages = process.beat.fence_pages
        starved = fence_pages * 4 > num_pages or process.beat.wanted_pages > num_pages - fence_pages
        if starved and prefill.child is not None and prefill.child.returncode is None and prefill.state == "ready":
            self._log.warning("prefill_recycled", role=process.role, fence_pages=fence_pages)
            self.failures["prefill"] = 0  # our own doing: its successor starts without a pause
            prefill.child.kill()

    async def _replace(self, process: Process) -> None:
        """Kill, reap, tell everyone, start anew."""
        process.state = "dead"
        self.dispatcher.set_healthy(process.incarnation, healthy=False)
        self._show()
        if process.child is not None:
            with contextlib.suppress(ProcessLookupError):
                process.child.kill()
            status = await process.child.wait()
            self._log.warning(
                "worker_reaped",
                role=process.role,
                incarnation=process.incarnation[:8],
                status=status,
                broken=process.broken,
            )
        await self._end(process)
        self._tell_death(process)
        await self._restart(process.role)

    def _tell_death(self, process: Process) -> None:
        """The process has been waited for: it writes no more."""
        other = self.live["decode" if process.role == "prefill" else "prefill"]
        if other.state in SERVING:
            self._order(other, PeerDied(process.incarnation, reaped=True))
        self.dispatcher.lose(process.incarnation, reaped=True)

    async def _restart(self, role: Role) -> None:
        while not self._stopping:
            self.restarts[role] += 1
            await asyncio.sleep(RESTART_PAUSE_S[min(self.failures[role], len(RESTART_PAUSE_S) - 1)])
            self.failures[role] += 1
            try:
                await self._launch(role)
                self._settle()
            except KvfenceError as error:
                self._log.error("worker_restart_failed", role=role, error=str(error))
                await self._end(self.live[role])
                continue
            self._enlist(self.live[role])
            return

    # ---- what others see

    def _show(self) -> None:
        states = []
        for role, process in sorted(self.live.items()):
            num_tokens = process.loaded.num_pages * process.loaded.page_size if process.loaded is not None else 0
            states.append(WorkerState(role, process.incarnation[:8], process.state, num_tokens, self.restarts[role]))
        self.dispatcher.set_states(tuple(states))

    def beats(self) -> dict[Role, Beat]:
        """The last heartbeat of each role, for metrics."""
        return {role: process.beat for role, process in self.live.items()}


def _error_of(role: Role, message: str) -> KvfenceError:
    """Give a worker's last words as the error they were, so that a user's mistake is told from our own fault."""
    kind, _, text = message.partition(": ")
    kinds: dict[str, type[CapacityError] | type[ModelError]] = {
        "CapacityError": CapacityError,
        "ModelError": ModelError,
    }
    return kinds[kind](f"{role} worker: {text}") if kind in kinds else WorkerError(role, message)


def worker_environment(plan: Plan) -> dict[str, str]:
    """Keep each worker's libraries to its own threads."""
    threads = str(plan.settings.model.threads)
    quiet = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return {**os.environ, **quiet}


def _gateway_trace(plan: Plan) -> TraceFile | None:
    folder = plan.settings.workers.trace
    return TraceFile(Path(folder) / "gateway.ndjson", plan.settings.limits.trace_bytes_max) if folder else None
