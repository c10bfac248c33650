"""Running workers as tests use them: requests as streams, page states, decode's own bytes, faults.

Mostly a pair. Where a scene has more workers, ``number`` says which of a role is meant.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import structlog
from msgspec import Struct, field

from kvfence.core.ids import AttemptId, RequestId, TenantId
from kvfence.core.limits import Limits
from kvfence.core.request import Request, SamplingParams
from kvfence.core.settings import PoolSettings, Role, Settings, TransportSettings, WorkerSettings
from kvfence.kv.storage import MemoryFile, PoolBuffer, map_shared, pool_bytes
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from kvfence.runtime.life import Life, Plan, Slot
from kvfence.runtime.supervisor import Supervisor
from kvfence.trace.reader import read_trace
from kvfence.trace.record import TraceStep
from tests.integration.runtime.arithmetic import CONTEXT, arithmetic_layout, expected_tokens
from tests.integration.runtime.faults import FOLDER, FaultFolder
from tests.recorded import require_allowed

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
ROOT = Path(__file__).parents[3]
PROGRAMS: dict[Role, str] = {
    "prefill": "tests.integration.runtime.arithmetic_prefill",
    "decode": "tests.integration.runtime.arithmetic_decode",
}
UNTIL_S = 15.0


class Scene(Struct, frozen=True):
    """What a test's pair is like, where it differs from production."""

    rules: Rules = Rules.all()
    num_prefill: int = 1
    num_decode: int = 1
    prefill_pages: int = 32
    decode_pages: int = 33
    silent_timeout_s: float = 3.0
    heartbeat_timeout_s: float = 10.0
    limits: Limits = Limits()
    modules: dict[Role, str] = field(default_factory=PROGRAMS.copy)
    context: int = CONTEXT
    dtype: str = "auto"
    trace: bool = True
    check_capacity: bool = False
    prefix_reuse: bool = True
    ready_timeout_s: float = 120.0
    transport: TransportSettings = TransportSettings()


async def until(what: str, holds: Callable[[], object], timeout_s: float = UNTIL_S) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout_s} s: {what}")
        await asyncio.sleep(0.01)


class Stream:
    """One request under way. Holds: its tokens and, at last, its end."""

    def __init__(self, supervisor: Supervisor, request: Request) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.num_cached = 0
        self.end: EndOut | None = None
        self._supervisor = supervisor
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        generation = self._supervisor.dispatcher.generate(self.request)
        try:
            async for item in generation:
                if isinstance(item, TokensOut):
                    self.tokens += item.token_ids
                    self.num_cached += item.num_cached
                else:
                    self.end = item
        finally:
            await generation.aclose()

    async def close(self) -> None:
        """Be a client that goes away."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self, timeout_s: float = UNTIL_S) -> EndReason:
        """Wait for the end and give its reason."""
        await asyncio.wait_for(asyncio.shield(self._task), timeout_s)
        assert self.end is not None
        return self.end.reason

    async def reach(self, num_tokens: int) -> None:
        """Wait until this many tokens have arrived."""
        await until(f"{num_tokens} tokens", lambda: len(self.tokens) >= num_tokens or self.end is not None)
        assert len(self.tokens) >= num_tokens, self.end

    @property
    def right(self) -> bool:
        """Whether every token so far is what the arithmetic model says of this prompt alone."""
        return self.tokens == expected_tokens(self.request.token_ids, len(self.tokens))


class Pair:
    """A running pair."""

    def __init__(self, supervisor: Supervisor, faults: FaultFolder, scene: Scene) -> None:
        self.supervisor = supervisor
        self.faults = faults
        self.scene = scene
        self._count = 0

    # ---- requests

    def stream(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        deadline_s: float = 60.0,
        tenant: str = "someone",
        sampling: SamplingParams = GREEDY,
        cache_salt: str = "",
    ) -> Stream:
        """Start a request."""
        self._count += 1
        name = RequestId(f"request-{self._count}")
        request = Request(
            name, TenantId(tenant), tuple(prompt), max_tokens, sampling, deadline_s=deadline_s, cache_salt=cache_salt
        )
        return Stream(self.supervisor, request)

    async def works(self) -> None:
        """Show that a request of several pages is answered right."""
        stream = self.stream(range(100, 150), 20)
        assert await stream.finish() is EndReason.LENGTH
        assert stream.right

    # ---- processes and pages

    def life(self, role: Role, number: int = 0) -> Life:
        """The current life of a worker."""
        return self.supervisor.live[Slot(role, number)]

    def restarts(self, role: Role, number: int = 0) -> int:
        """How often a worker was replaced."""
        return self.supervisor.restarts[Slot(role, number)]

    def pid(self, role: Role, number: int = 0) -> int:
        """Process id of a worker now."""
        child = self.life(role, number).child
        assert child is not None
        return child.pid

    def signal(self, role: Role, signum: signal.Signals, number: int = 0) -> None:
        """Signal a worker."""
        os.kill(self.pid(role, number), signum)

    def states(self, role: Role, number: int = 0) -> dict[str, int]:
        """Pages by state, as the last heartbeat said; only states that some page is in."""
        return {state: count for state, count in self.life(role, number).beat.states.items() if count}

    async def next_beat(self, role: Role, number: int = 0) -> dict[str, int]:
        """Wait for a heartbeat younger than this call, so that it shows what happened before."""
        for _ in range(2):  # the first may have been on its way
            beat = self.life(role, number).beat
            await until(f"a heartbeat of {role}", lambda beat=beat: self.life(role, number).beat is not beat)  # type: ignore[misc]
        return self.states(role, number)

    async def all_free(self, *roles: Role, timeout_s: float = UNTIL_S) -> None:
        """Wait until every page is FREE, or cached and held by nobody."""
        pages = {"prefill": self.scene.prefill_pages, "decode": self.scene.decode_pages}
        for role, number in [slot for slot in self.slots if slot[0] in (roles or ("prefill", "decode"))]:
            await self.next_beat(role, number)
            await until(
                f"all pages of {role}-{number} free",
                lambda r=role, n=number: self.num_free(r, n) == pages[r],  # type: ignore[misc]
                timeout_s,
            )

    def num_free(self, role: Role, number: int = 0) -> int:
        """Pages FREE, or cached and held by nobody."""
        states = self.states(role, number)
        return states.get("free", 0) + states.get("cached", 0)

    @property
    def slots(self) -> list[tuple[Role, int]]:
        """Every worker's role and number."""
        return [(slot.role, slot.number) for slot in self.supervisor.slots]

    async def ready(self, num_restarts: int, role: Role, number: int = 0) -> None:
        """Wait until a worker serves again after this many restarts."""
        await until(
            f"{role}-{number} restarted",
            lambda: self.restarts(role, number) >= num_restarts and self.life(role, number).state == "ready",
            60.0,
        )

    def node(self) -> GatewayNode:
        """What the gateway knows."""
        loop = self.supervisor.dispatcher._loop
        assert loop is not None
        return loop.node

    def attempt_of(self, stream: Stream) -> AttemptId:
        """The attempt that feeds a stream now."""
        return self.node().current[stream.request.id]

    def workers_of(self, stream: Stream) -> tuple[int, int]:
        """The numbers of the prefill and decode worker that a stream was placed on."""
        handoff = self.node().handoffs[self.attempt_of(stream)]
        numbers = {life.incarnation: slot.number for slot, life in self.supervisor.live.items()}
        return numbers[handoff.prefill], numbers[handoff.decode]

    def granted_pages(self, stream: Stream) -> tuple[int, ...]:
        """Decode's pages that prefill writes for a stream."""
        grant = self.node().handoffs[self.attempt_of(stream)].grant
        assert grant is not None
        return grant.pages

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[PoolBuffer]:
        """Decode's pool, its very bytes."""
        layout, fd = arithmetic_layout(), self.life("decode").pool_fd
        assert fd is not None
        memory: MemoryFile = map_shared(os.dup(fd), pool_bytes(layout, self.scene.decode_pages))
        try:
            yield PoolBuffer(memory.buffer, layout, self.scene.decode_pages)
        finally:
            memory.close()

    # ---- log and traces

    def log(self) -> str:
        """What the supervisor logged."""
        return (self.faults.path / "log").read_text()

    @property
    def trace_folder(self) -> Path:
        """Where traces are written."""
        return self.faults.path / "trace"

    def steps(self, role: str, incarnation: str = "") -> list[TraceStep]:
        """Read every step of a role's (current) life so far."""
        if role == "gateway":
            return list(read_trace(self.trace_folder / "gateway.ndjson")[1])
        life = incarnation or self.life("prefill" if role == "prefill" else "decode").incarnation
        return list(read_trace(self.trace_folder / f"{role}-{life[:8]}.ndjson")[1])


@asynccontextmanager
async def running_pair(scene: Scene, folder: Path, model_path: str = "") -> AsyncIterator[Pair]:
    """Run a pair in this scene; nothing of it outlives the block."""
    async with planned_pair(scene, folder, model_path) as pair:
        await pair.supervisor.start()
        yield pair


@asynccontextmanager
async def planned_pair(scene: Scene, folder: Path, model_path: str = "") -> AsyncIterator[Pair]:
    """Give a pair that has not been started; nothing of it outlives the block."""
    (folder / "trace").mkdir()
    settings = Settings(
        pool=PoolSettings(prefix_reuse=scene.prefix_reuse),
        workers=WorkerSettings(
            trace=str(folder / "trace") if scene.trace else "",
            ready_timeout_s=scene.ready_timeout_s,
            silent_timeout_s=scene.silent_timeout_s,
            heartbeat_timeout_s=scene.heartbeat_timeout_s,
            prefill=scene.num_prefill,
            decode=scene.num_decode,
        ),
        limits=scene.limits,
        transport=scene.transport,
    )
    settings = msgspec.structs.replace(settings, model=msgspec.structs.replace(settings.model, dtype=scene.dtype))
    pages: dict[Role, int] = {"prefill": scene.prefill_pages, "decode": scene.decode_pages}
    plan = Plan(
        settings, model_path, scene.rules, pages, scene.context, scene.modules, check_capacity=scene.check_capacity
    )
    log = (folder / "log").open("w", buffering=1)
    supervisor = Supervisor(plan, structlog.wrap_logger(structlog.PrintLogger(log)))
    pair = Pair(supervisor, FaultFolder(folder), scene)
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(FOLDER, str(folder))
            environment.setenv("PYTHONPATH", str(ROOT))
            yield pair
    finally:
        pair.faults.let_go()
        for process in supervisor.live.values():  # a stopped worker would cost the patience of `stop`
            if process.child is not None and process.child.returncode is None:
                os.kill(process.child.pid, signal.SIGCONT)
        await supervisor.stop()
        log.close()
    if scene.trace:
        require_allowed(folder / "trace", guarded=scene.rules == Rules.all())
