"""One life of one worker: its process, lifeline and last heartbeat, from its start to its end.

A *slot* is a place for a worker, such as prefill-0; the lives in a slot follow each other, each with an incarnation
of its own. Not for: who is started, watched and replaced (``supervisor.py``), or what a worker does (``worker.py``).
"""

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

from msgspec import Struct, field

from kvfence.core.errors import CapacityError, KvfenceError, ModelError, WorkerError
from kvfence.core.ids import Incarnation, new_incarnation
from kvfence.core.settings import Role, Settings, WorkerSettings
from kvfence.protocol.guards import Rules
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
)

WORKER_MODULES: dict[Role, str] = {
    "prefill": "kvfence.runtime.prefill_worker",
    "decode": "kvfence.runtime.decode_worker",
}
STOP_S = 5.0
"""How long a worker whose lifeline was closed may take to end before it is killed."""


class Plan(Struct, frozen=True):
    """What to run. ``pool_pages``: of each worker of a role; 0: the worker computes it from the memory left.

    ``modules``: the worker programs; tests and demonstrations run others with the same lifeline, and tell them in
    ``environment`` what is to go wrong.
    """

    settings: Settings
    model_path: str
    rules: Rules
    pool_pages: dict[Role, int]
    context_tokens: int
    modules: dict[Role, str] = field(default_factory=WORKER_MODULES.copy)
    check_capacity: bool = True
    environment: dict[str, str] = {}


class Slot(Struct, frozen=True, order=True):
    """A place for one worker. Units: number counts from 0 within the role."""

    role: Role
    number: int = 0

    @property
    def name(self) -> str:
        """What logs and metrics call it."""
        return f"{self.role}-{self.number}"


def slots_of(workers: WorkerSettings) -> tuple[Slot, ...]:
    """Give every slot, decode's first."""
    counts: tuple[tuple[Role, int], ...] = (("decode", workers.decode), ("prefill", workers.prefill))
    return tuple(Slot(role, number) for role, count in counts for number in range(count))


class Life:
    """One life of the worker in a slot.

    Holds:
        ``met``: the peers it was introduced to, who must hear of its death. ``silent_s``: for how long it was
        listened to in vain. ``pool_fd``: decode's pool, for the prefill workers that are still to come.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.incarnation = new_incarnation()
        self.child: asyncio.subprocess.Process | None = None
        self.lifeline: Lifeline[Report] | None = None
        self.loaded: Loaded | None = None
        self.pool_fd: int | None = None
        self.beat = Beat()
        self.silent_s = 0.0
        self.broken = ""
        self.state = "starting"
        self.met: set[Incarnation] = set()

    @property
    def role(self) -> Role:
        """What it does."""
        return self.slot.role

    @property
    def runs(self) -> bool:
        """Has its process started and not been waited for?"""
        return self.child is not None and self.child.returncode is None

    # ---- from the start to the loaded model

    async def launch(self, plan: Plan, control_dir: Path, num_pages: int) -> Loaded:
        """Start the process and wait until its model is loaded.

        Raises:
            WorkerError, CapacityError, ModelError: it cannot be started or did not load; its own words are in it.
        """
        ours, theirs = socket.socketpair()
        self.lifeline = Lifeline(ours, Report)  # type: ignore[arg-type]
        command = (sys.executable, "-m", plan.modules[self.role], str(theirs.fileno()))
        try:
            self.child = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, env=worker_environment(plan)
            )
        except OSError as error:
            raise WorkerError(self.role, f"no process can be started: {error.strerror}") from None
        finally:
            theirs.close()
        begin = Begin(
            self.role, self.incarnation, str(control_dir), plan.model_path, plan.settings, plan.rules, num_pages
        )
        timeout_s = plan.settings.workers.ready_timeout_s
        try:
            self.lifeline.send(begin)
            async with asyncio.timeout(timeout_s):
                return await self._load(self.lifeline)
        except TimeoutError:
            raise WorkerError(self.role, f"did not load within {timeout_s} s; see --ready-timeout-s") from None
        except OSError as error:
            raise WorkerError(self.role, f"could not be given its orders: {error.strerror}") from None

    async def _load(self, lifeline: Lifeline[Report]) -> Loaded:
        try:
            report, fd = await lifeline.receive()
        except EOFError:
            status = await self.child.wait() if self.child is not None else None
            raise WorkerError(self.role, f"died at start with status {status}; see its output above", status) from None
        if isinstance(report, Broken):
            raise _error_of(self.role, report.message)
        if not isinstance(report, Loaded):
            raise WorkerError(self.role, "spoke out of turn at start")
        self.loaded, self.pool_fd, self.state = report, fd, "loaded"
        return report

    # ---- orders

    def order(self, order: Order, fd: int | None = None) -> None:
        """Send an order; a worker that cannot take it is beyond orders: it is killed, and its watch replaces it."""
        try:
            if self.lifeline is not None:
                self.lifeline.send(order, fd)
        except OSError:
            self.kill()

    def meet(self, newcomer: "Life") -> None:
        """Be told of a peer; a prefill worker gets the pool that it may write into."""
        offer, fd = None, None
        if newcomer.role == "decode" and newcomer.loaded is not None:
            num_pages = newcomer.loaded.num_pages
            offer, fd = PoolOffer(num_pages, num_pages * newcomer.loaded.record_bytes), newcomer.pool_fd
        self.met.add(newcomer.incarnation)
        self.order(MeetPeer(newcomer.incarnation, newcomer.role, newcomer.role == "prefill", offer), fd)

    def lose(self, peer: Incarnation) -> None:
        """Be told that a peer it met is dead, its process waited for."""
        if peer in self.met:
            self.met.discard(peer)
            self.order(PeerDied(peer, reaped=True))

    # ---- its end

    def kill(self) -> None:
        """Kill the process, if it runs; a stopped one, too."""
        if self.child is not None and self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.kill()

    async def reap(self) -> int | None:
        """Kill the process and wait for it: afterwards it writes no more. Returns: its exit status."""
        self.kill()
        return await self.child.wait() if self.child is not None else None

    async def end(self) -> None:
        """Close the lifeline, which ends the worker; kill it where that takes too long. Lets its pool go."""
        if self.lifeline is not None:
            self.lifeline.close()
        if self.child is not None and self.runs:
            try:
                async with asyncio.timeout(STOP_S):
                    await self.child.wait()
            except TimeoutError:
                await self.reap()
        if self.pool_fd is not None:
            os.close(self.pool_fd)
            self.pool_fd = None


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
    return {**os.environ, **quiet, **plan.environment}
