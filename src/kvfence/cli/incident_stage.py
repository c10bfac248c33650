"""The servers of ``kvfence incident``: pairs with the incident's prefill worker, and the single node.

Not for: what is asked of them (``incident/``) or ``serve``, which cannot reach this module.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

import psutil
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from kvfence.cli.compose import ServedModel
from kvfence.core.errors import CapacityError
from kvfence.core.settings import ModelSettings, PoolSettings, Settings, WorkerSettings
from kvfence.driver.mutants import INCIDENT_LACKS
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.logs import open_log
from kvfence.gateway.registry import KeyRegistry, load_keys
from kvfence.gateway.server import bind, serving
from kvfence.incident import workload
from kvfence.incident.client import Door
from kvfence.incident.runs import Served
from kvfence.incident.scenarios import LANES, Scenario
from kvfence.incident.single import SingleNode
from kvfence.incident.workload import Workload
from kvfence.kv.host import host_views
from kvfence.kv.storage import PoolBuffer, available_bytes, pool_bytes
from kvfence.models.tokenizer import Tokenizer
from kvfence.models.transformer import ExecutorSpec, TransformerExecutor, load_executor
from kvfence.protocol.guards import Rules
from kvfence.runtime.generation import Generations
from kvfence.runtime.life import WORKER_MODULES, Plan
from kvfence.runtime.supervisor import Supervisor

PREFILL_MODULE = "kvfence.incident.prefill_worker"
TRIES = 3
"""How often a pool by memory fraction is tried: memory left moves while others use the machine."""

DEADLINE_S = 300.0
QUIET_S = 60.0
"""A slow machine is no reason to replace a worker in a demonstration."""


SIDE_BY_SIDE_BYTES = 6 << 30
"""Memory left with which two pairs and the control are started at once."""


class Bounds(Struct, frozen=True):
    """The pool that a memory fraction is to give, in pages."""

    least: int
    wanted: float
    most: int


BOUNDS = {
    "small": Bounds(workload.SMALL_PAGES - 2, workload.SMALL_PAGES - 0.5, workload.SMALL_PAGES),
    "large": Bounds(workload.LARGE_PAGES // 2, workload.LARGE_PAGES, 100 * workload.LARGE_PAGES),
}


class Stage:
    """Starts each scenario's server. Holds: the size of a page record, once a pair has said it."""

    def __init__(self, model: ServedModel, tokenizer: Tokenizer, dtype: str = "auto") -> None:
        self._model, self._tokenizer, self._dtype = model, tokenizer, dtype
        self._keys = {tenant: secrets.token_hex(16) for tenant in workload.everybody()}
        self._record_bytes = 0

    def lanes(self) -> tuple[tuple[Scenario, ...], ...]:
        """Give the runs in rows that go side by side, or in one row where memory is short."""
        return LANES if available_bytes() >= SIDE_BY_SIDE_BYTES else (LANES[0] + LANES[1],)

    def draw(self, scenario: Scenario, seed: int) -> Workload:
        """Draw the requests of a scenario in this model's tokens."""
        return workload.draw_workload(
            seed, lambda text: self._tokenizer.encode(text, workload.CONTEXT_TOKENS), scenario.sizes
        )

    @asynccontextmanager
    async def open(self, scenario: Scenario, folder: Path) -> AsyncIterator[Served]:
        """Serve a scenario while the block runs."""
        with _open_log_file(folder) as file:
            log = open_log(file=file)
            opened = self._pair(scenario, folder, log) if scenario.disaggregated else self._single(folder, log)
            async with opened as served:
                yield served

    # ---- pairs

    @asynccontextmanager
    async def _pair(self, scenario: Scenario, folder: Path, log: FilteringBoundLogger) -> AsyncIterator[Served]:
        supervisor, fraction = await self._start(scenario, folder, log)
        try:
            loaded = supervisor.of("prefill")[0].loaded
            self._record_bytes = loaded.record_bytes if loaded is not None else 0
            capacity = supervisor.dispatcher.capacity
            async with self._http(supervisor.dispatcher, folder, log) as door:
                size = capacity.page_size
                yield Served(
                    door,
                    capacity.prefill_pages * size,
                    capacity.decode_pages * size,
                    lambda: _cpu_s(supervisor),
                    fraction,
                )
        finally:
            await supervisor.stop()

    async def _start(self, scenario: Scenario, folder: Path, log: FilteringBoundLogger) -> tuple[Supervisor, float]:
        bounds = BOUNDS[scenario.pool]
        by_fraction = scenario.by_fraction and self._record_bytes > 0
        wanted = bounds.wanted
        for _ in range(TRIES):
            fraction = 2 * wanted * self._record_bytes / available_bytes() if by_fraction else 0.0
            supervisor = Supervisor(self._plan(scenario, folder, fraction), log)
            try:
                capacity = await supervisor.start()
            except BaseException:
                await supervisor.stop()
                raise
            if not by_fraction or bounds.least <= capacity.prefill_pages <= bounds.most:
                return supervisor, fraction
            wanted *= bounds.wanted / (capacity.prefill_pages + 0.5)
            await supervisor.stop()
            _drop_traces(folder)
        raise CapacityError(
            "the memory left on this machine moves too much for a pool by memory fraction; try again when it is quieter"
        )

    def _plan(self, scenario: Scenario, folder: Path, fraction: float) -> Plan:
        pool = PoolSettings(page_size=workload.PAGE_SIZE, memory_fraction=fraction, prefix_reuse=False)
        settings = Settings(
            model=ModelSettings(dtype=self._dtype, context=str(workload.CONTEXT_TOKENS)),  # type: ignore[arg-type]
            pool=pool,
            workers=WorkerSettings(
                trace=str(folder), ready_timeout_s=DEADLINE_S, silent_timeout_s=QUIET_S, heartbeat_timeout_s=QUIET_S
            ),
        )
        pages = workload.SMALL_PAGES if scenario.pool == "small" else workload.LARGE_PAGES
        return Plan(
            settings,
            str(self._model.path),
            Rules.all() if scenario.guarded else Rules.without(*INCIDENT_LACKS),
            {"prefill": 0 if fraction else pages, "decode": workload.DECODE_PAGES},
            workload.CONTEXT_TOKENS,
            modules={**WORKER_MODULES, "prefill": PREFILL_MODULE},
            check_capacity=False,
        )

    # ---- the single node

    @asynccontextmanager
    async def _single(self, folder: Path, log: FilteringBoundLogger) -> AsyncIterator[Served]:
        before = time.process_time()
        executor = await asyncio.to_thread(self._load)
        self._record_bytes = executor.layout.record_bytes
        pool = PoolBuffer(
            bytearray(pool_bytes(executor.layout, workload.SMALL_PAGES)), executor.layout, workload.SMALL_PAGES
        )
        executor.bind(host_views(pool, executor.layout))
        node = SingleNode(executor, workload.SMALL_PAGES, workload.CONTEXT_TOKENS)
        tokens = workload.SMALL_PAGES * workload.PAGE_SIZE
        try:
            async with self._http(node, folder, log) as door:
                yield Served(door, tokens, tokens, lambda: time.process_time() - before)
        finally:
            await asyncio.to_thread(node.close)

    def _load(self) -> TransformerExecutor:
        spec = ExecutorSpec(workload.PAGE_SIZE, self._dtype, "cpu", threads=1)
        return load_executor(self._model.path, spec)

    # ---- HTTP

    @asynccontextmanager
    async def _http(self, generations: Generations, folder: Path, log: FilteringBoundLogger) -> AsyncIterator[Door]:
        deps = GatewayDeps(
            generations=generations,
            tokenizer=self._tokenizer,
            model=self._model.name,
            log=log,
            keys=self._registry(folder),
            deadline_s=DEADLINE_S,
            probe_every_s=0,
        )
        async with serving(build_app(deps), bind("127.0.0.1", 0)) as address:
            yield Door(address.url, self._model.name, self._keys)

    def _registry(self, folder: Path) -> KeyRegistry:
        """Give each tenant a key, through the same file that ``--api-keys`` reads."""
        path = folder / "keys"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(f"{key} {tenant}\n" for tenant, key in self._keys.items())
        return load_keys(path)


def _cpu_s(supervisor: Supervisor) -> float:
    total = 0.0
    for process in supervisor.live.values():
        if process.child is not None and process.child.returncode is None:
            times = psutil.Process(process.child.pid).cpu_times()
            total += times.user + times.system
    return total


def _open_log_file(folder: Path) -> TextIO:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / "server.log").open("w")


def _drop_traces(folder: Path) -> None:
    for trace in folder.glob("*.ndjson*"):
        trace.unlink()
