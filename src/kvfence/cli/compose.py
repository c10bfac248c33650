"""Puts a server together: model, pools, workers, gateway, socket; and takes it apart again in order.

``serve`` composes it with every guard; demonstrations pass other rules and worker programs. Not for: settings
(``load_settings.py``) or what is printed (``serve.py``).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from kvfence.cli.render import print_note
from kvfence.core.errors import SettingsError
from kvfence.core.ids import AttemptId
from kvfence.core.settings import Settings
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.fence import Fence, WorkerView
from kvfence.gateway.logs import open_log
from kvfence.gateway.quotas import Allowance
from kvfence.gateway.registry import KeyRegistry, describe_exposure, load_keys, require_keys_or_loopback
from kvfence.gateway.server import Address, bind, serving
from kvfence.gateway.telemetry import open_tracing
from kvfence.models.bundled import MODEL_NAME, Progress
from kvfence.models.checkpoint import read_facts, resolve_checkpoint
from kvfence.models.tokenizer import load_tokenizer
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.protocol.handoff import GatewayHandoff
from kvfence.runtime.capacity import check_capacity, plan_pools
from kvfence.runtime.life import Plan
from kvfence.runtime.owners import Owner
from kvfence.runtime.sessions import lands_in_order, require_transport
from kvfence.runtime.supervisor import Supervisor


class ServedModel(Struct, frozen=True):
    """A checkpoint on disk. Units: context_tokens as the settings ask, 0 for auto."""

    path: Path
    name: str
    model_context: int
    context_tokens: int


class RunningServer(Struct, frozen=True):
    """A server that answers."""

    address: Address
    model: ServedModel
    capacity: Capacity
    supervisor: Supervisor


class WorkerNumbers:
    """The workers' last heartbeats as gauges; implements ``gateway.metrics.GaugeSource``."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def pool_pages(self) -> Mapping[tuple[str, str, str], int]:
        """(role, worker, page state) -> pages now."""
        return {
            (slot.role, slot.name, state): count
            for slot, beat in self._supervisor.beats().items()
            for state, count in beat.states.items()
        }

    def handoffs(self) -> Mapping[str, int]:
        """Outcome -> hand-offs since the start, of all decode workers."""
        counts: Counter[str] = Counter()
        for beat in self._supervisor.totals().values():
            counts.update(beat.outcomes)
        return counts

    def guard_decisions(self) -> Mapping[tuple[str, str, str], int]:
        """(guard, place, answer) -> times asked since the start, by all processes of a place."""
        counts = Counter(self._supervisor.dispatcher.decisions)
        for beat in self._supervisor.totals().values():
            counts.update({(guard, place, answer): count for guard, place, answer, count in beat.decisions})
        return counts

    def worker_events(self) -> Mapping[tuple[str, str, str], int]:
        """(role, worker, event) -> times since the start."""
        return {
            (slot.role, slot.name, event): count
            for slot, beat in self._supervisor.totals().items()
            for event, count in beat.counters.items()
        }

    def prefixes(self) -> Mapping[tuple[str, str], int]:
        """(worker, what is counted) -> count since the start."""
        return {
            (slot.name, counted): count
            for slot, beat in self._supervisor.totals().items()
            for counted, count in beat.prefixes.items()
        }


class FenceView:
    """The workers' last heartbeats and the gateway's attempts, as drawn; implements ``gateway.fence.FenceSource``."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def views(self) -> Sequence[WorkerView]:
        """Every worker."""
        restarts = self._supervisor.restarts
        return [
            WorkerView(
                slot.name, slot.role, life.incarnation, life.state, restarts[slot], life.beat.states, life.beat.map
            )
            for slot, life in sorted(
                self._supervisor.live.items(), key=lambda each: (each[0].role != "prefill", each[0])
            )
        ]

    def handoffs(self) -> Sequence[GatewayHandoff]:
        """Every open attempt."""
        return self._supervisor.dispatcher.handoffs

    def owner_of(self, attempt: AttemptId) -> Owner | None:
        """Whose an attempt is."""
        return self._supervisor.dispatcher.owners.of(attempt)

    def guard_decisions(self) -> Mapping[tuple[str, str, str], int]:
        """(guard, place, answer) -> times asked."""
        return WorkerNumbers(self._supervisor).guard_decisions()


def find_model(settings: Settings, progress: Progress) -> ServedModel:
    """Find the checkpoint, fetching the embedded one if need be, and settle its name and context.

    Raises:
        ModelError: it cannot be fetched, read or served.
        SettingsError: the context is no number, or larger than the model's.
    """
    path = resolve_checkpoint(settings.model.path, progress)
    facts = read_facts(path)
    name = settings.model.name or (path.name if settings.model.path else MODEL_NAME)
    return ServedModel(path, name, facts.context_tokens, _context(settings.model.context, facts.context_tokens))


def _context(wanted: str, model_context: int) -> int:
    if wanted == "auto":
        return 0
    if not wanted:
        return model_context
    if not wanted.isdecimal() or int(wanted) < 1:
        raise SettingsError([f"--context {wanted}: give a number of tokens, or auto"])
    if int(wanted) > model_context:
        raise SettingsError([f"--context {wanted}: this model was made for at most {model_context} tokens"])
    return int(wanted)


def make_plan(settings: Settings, model: ServedModel, rules: Rules, *, check: bool = True) -> Plan:
    """Say what to run, and refuse a pool that cannot hold one context before anything is loaded.

    Raises:
        CapacityError: with both roles' numbers and the flag that mends it.
        SettingsError: the transport cannot run here.
    """
    exposed = require_transport(settings)
    if exposed:
        print_note(f"warning: {exposed}")
    pages = plan_pools(settings.pool, model.context_tokens or model.model_context).pages
    if check and model.context_tokens and all(pages.values()):
        check_capacity(Capacity(settings.pool.page_size, model.context_tokens, pages["prefill"], pages["decode"]))
    return Plan(settings, str(model.path), rules, pages, model.context_tokens, check_capacity=check)


def load_registry(settings: Settings) -> tuple[KeyRegistry, str | None]:
    """Read the API keys, refuse other machines without any, and say how to close an open key file.

    Raises:
        SettingsError: the file is unreadable or wrong, or the host is not loopback and there are no keys.
    """
    file = Path(settings.server.api_keys).expanduser() if settings.server.api_keys else None
    registry = load_keys(file) if file is not None else KeyRegistry()
    require_keys_or_loopback(settings.server.host, registry)
    return registry, describe_exposure(file) if file is not None else None


def describe_order(settings: Settings) -> str | None:
    """Say so where bytes need not land in the order in which they were written; None where they do."""
    if lands_in_order(settings):
        return None
    return (
        "on this machine and transport nothing promises that bytes land in the order in which they were written: the "
        "comparison of page heads at every pass is a probe here and not a guarantee (ARCHITECTURE.md); stamps and "
        "digests at adoption hold as everywhere"
    )


@asynccontextmanager
async def running_server(
    plan: Plan, model: ServedModel, registry: KeyRegistry, log_file: TextIO | None = None
) -> AsyncIterator[RunningServer]:
    """Serve while the block runs. The port is taken before the workers start, so that a taken one is known at once.

    ``log_file``: where log lines go instead of stderr.

    Raises:
        SettingsError: the port is taken.
        WorkerError, CapacityError, LayoutMismatch: the workers cannot serve.
    """
    settings = plan.settings
    log = open_log(settings.telemetry.log_format, log_file)
    tracing = open_tracing(settings.telemetry.otel, model.name, log)
    listener = bind(settings.server.host, settings.server.port)
    supervisor = Supervisor(plan, log)
    try:
        capacity = await supervisor.start()
        deps = GatewayDeps(
            generations=supervisor.dispatcher,
            tokenizer=await asyncio.to_thread(load_tokenizer, model.path),
            model=model.name,
            log=log,
            keys=registry,
            gauges=WorkerNumbers(supervisor),
            observed=tuple(sorted(plan.rules.observed)),
            fence=Fence(FenceView(supervisor), names=settings.telemetry.fence_names),
            journeys=supervisor.dispatcher.journeys,
            tracing=tracing,
            max_body_bytes=settings.server.max_body_bytes,
            deadline_s=settings.server.deadline_s,
            allowance=Allowance(settings.limits.tenant_requests_max, settings.limits.tenant_tokens_per_minute),
        )
        async with serving(build_app(deps), listener) as address:
            yield RunningServer(address, model, capacity, supervisor)
    finally:
        listener.close()
        await supervisor.stop()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
