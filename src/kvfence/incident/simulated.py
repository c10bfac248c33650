"""The same runs on the protocol alone: the production nodes on symbols for bytes, in one process.

The simulation's own traces are read by the same oracle and story as the live ones. A symbolic model stands for the
real one: its answer names whoever wrote most of what it read. Standard library and msgspec only.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId, RequestId, TenantId
from kvfence.core.layout import KVLayout, Segment
from kvfence.core.request import Request, SamplingParams
from kvfence.driver.mutants import INCIDENT_LACKS, placeholder_on_refusal
from kvfence.incident import workload
from kvfence.incident.findings import RunFacts, SeedFindings, count_tenants, judge
from kvfence.incident.oracle import Leak, Reading, Traces, find_leaks, read_traces
from kvfence.incident.scenarios import CONTROL, LANES, SMALL_UNGUARDED, Scenario
from kvfence.incident.single import SingleNode
from kvfence.incident.story import Sample, Telling, tell
from kvfence.models.executor import PassRow
from kvfence.protocol.admission import Capacity
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import Event
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.protocol.step import Node, Step, step
from kvfence.runtime.generation import EndOut
from kvfence.sim.process import Setup
from kvfence.sim.workload import SimRequest
from kvfence.sim.world import World
from kvfence.trace.record import TraceStep

STATUS = {EndReason.LENGTH: "200", EndReason.CANCELLED: "200", EndReason.DOES_NOT_FIT: "400"}
"""What the gateway answers; a client that left half-way had been given 200."""

LINE = [1, 2, 3, 4, 5, 6]
"""Stands for every line of text: the protocol does not see tokens."""


class StepLog:
    """A stepper that keeps every step by role. Units: times count steps."""

    def __init__(self) -> None:
        self.steps: dict[str, list[TraceStep]] = {"gateway": [], "prefill": [], "decode": []}
        self._n = 0

    def step(self, rules: Rules, node: Node, event: Event) -> Step:
        """Step the node and keep what came of it."""
        result = step(rules, node, event)
        kept = self.steps[_role(node)]
        self._n += 1
        kept.append(TraceStep(len(kept) + 1, self._n, event, result.commands, result.decisions))
        return result

    @property
    def traces(self) -> Traces:
        """All steps so far."""
        return Traces(workload.PAGE_SIZE, *(tuple(self.steps[role]) for role in ("gateway", "prefill", "decode")))


def _role(node: Node) -> str:
    if isinstance(node, GatewayNode):
        return "gateway"
    return "decode" if isinstance(node, DecodeNode) else "prefill"


class SimRun(Struct, frozen=True):
    """One simulated run."""

    facts: RunFacts
    readings: dict[AttemptId, Reading]
    tenants: dict[str, str]
    leaks: tuple[Leak, ...]


def simulate(seed: int) -> SeedFindings:
    """Play every run of one seed and judge them."""
    runs = {each.name: _play(each, seed) for lane in LANES for each in lane if each.disaggregated}
    facts = [run.facts for run in runs.values()]
    facts.append(asyncio.run(_control(seed)))
    return judge(seed, facts, _sample(runs[SMALL_UNGUARDED.name]))


def _play(scenario: Scenario, seed: int) -> SimRun:
    began = time.monotonic()
    drawn = workload.draw_workload(seed, lambda _: LINE, scenario.sizes)
    asks = drawn if scenario.every_round else drawn.first_tenants_only()
    pages = workload.SMALL_PAGES if scenario.pool == "small" else workload.LARGE_PAGES
    capacity = Capacity(workload.PAGE_SIZE, workload.CONTEXT_TOKENS, pages, workload.DECODE_PAGES)
    setup = Setup(
        rules=Rules.all() if scenario.guarded else Rules.without(*INCIDENT_LACKS),
        capacity=capacity,
        batch_pages_max=64,
        chunk_pages=8,
        concurrency=workload.NUM_OVERSIZE // workload.ROUNDS,
        rewrites=(placeholder_on_refusal(capacity),),
        checked=False,
    )
    log = StepLog()
    requests = [_request(ask) for each in asks.rounds for ask in (*each.tenants, *each.oversize)]
    world = World(setup, requests, log.step).run()
    readings = read_traces(log.traces)
    tenants = {str(request.id): str(request.tenant) for request in requests}
    leaks = tuple(leak for leak in find_leaks(readings, tenants) if tenants[leak.request] == workload.ASKER)
    statuses = {str(request.id): STATUS.get(world.answers[request.id].reason, "other") for request in requests}
    facts = _facts(scenario, seed, _Judged(statuses, tenants, leaks, readings), time.monotonic() - began)
    return SimRun(facts, readings, tenants, leaks)


def _request(ask: workload.Ask) -> SimRequest:
    leaves = ask.cut_after or None
    return SimRequest(RequestId(ask.name), TenantId(ask.tenant), len(ask.token_ids), ask.max_tokens, leaves)


class _Judged(Struct, frozen=True):
    """One run's answers and leaks. ``statuses``, ``tenants``: by request id."""

    statuses: dict[str, str]
    tenants: dict[str, str]
    leaks: tuple[Leak, ...] = ()
    readings: dict[AttemptId, Reading] = {}

    def given_to(self, *, asker: bool) -> dict[str, str]:
        """Give the statuses of the asker's requests, or of everybody else's."""
        return {r: status for r, status in self.statuses.items() if (self.tenants[r] == workload.ASKER) == asker}

    def foreign_answers(self) -> int:
        """Count answers in which the symbolic model names another tenant more than its own prompt."""
        return sum(
            max(leak.slots.values()) > self.readings[leak.attempt].num_own for leak in self.leaks if leak.num_tokens > 1
        )


def _facts(scenario: Scenario, seed: int, judged: _Judged, wall_s: float) -> RunFacts:
    oversize, others = judged.given_to(asker=True), judged.given_to(asker=False)
    given = [leak for leak in judged.leaks if oversize.get(leak.request) == "200"]
    pages = workload.SMALL_PAGES if scenario.pool == "small" else workload.LARGE_PAGES
    return RunFacts(
        name=scenario.name,
        seed=seed,
        pool_tokens=pages * workload.PAGE_SIZE,
        memory_fraction=0.0,
        guards="all" if scenario.guarded else "those of the incident's engine",
        statuses=dict(sorted(Counter(oversize.values()).items())),
        leaked=len(given),
        oracle_leaks=len({leak.request for leak in judged.leaks}),
        status_alarms=sum(status != ("400" if scenario.refuses else "200") for status in oversize.values()),
        marker_alarms=judged.foreign_answers(),
        text_markers=None,
        amnesia=None,
        too_fast=None,
        tenants_read=count_tenants(leak.slots for leak in given),
        generated=sum(leak.generated > 0 for leak in given),
        others=dict(sorted(Counter(others.values()).items())),
        wall_s=round(wall_s, 2),
        cpu_s=round(wall_s, 2),
    )


def _sample(run: SimRun) -> Sample | None:
    """Tell of the leak that read most of an answer; there is no text to show."""
    if not run.leaks:
        return None
    leak = max(run.leaks, key=lambda each: (each.generated > 0, -len(each.slots), max(each.slots.values())))
    pages, steps = tell(Telling(run.readings[leak.attempt], run.readings, run.tenants, leak))
    source = max(leak.slots, key=lambda tenant: leak.slots[tenant])
    return Sample(leak.request, str(leak.attempt), "", "", source, (), pages, steps)


# ---- the control


class SymbolicExecutor:
    """An executor whose pages hold names: what each row reads is kept. Implements what ``SingleNode`` uses."""

    eos_token_ids: frozenset[int] = frozenset()
    vocab_size = 1
    context_tokens = workload.CONTEXT_TOKENS
    weight_bytes = 0

    def __init__(self) -> None:
        self.layout = KVLayout(workload.PAGE_SIZE, (Segment("symbol", 0, (1,), "uint8"),))
        self._slots: dict[int, list[object]] = {}
        self.foreign = 0

    def bind(self, views: list[Any]) -> None:
        """Need no pool: pages are lists."""

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Write each row's slots, read all up to them, and count what others had written."""
        for row in rows:
            owner = row.sampling.seed if row.sampling is not None else 0
            stop = row.start + len(row.token_ids)
            pages = [self._slots.setdefault(page, [None] * workload.PAGE_SIZE) for page in row.pages]
            for position in range(row.start, stop):
                pages[position // workload.PAGE_SIZE][position % workload.PAGE_SIZE] = owner
            read = [pages[at // workload.PAGE_SIZE][at % workload.PAGE_SIZE] for at in range(stop)]
            self.foreign += sum(slot != owner for slot in read)
        return [1] * len(rows)


async def _control(seed: int) -> RunFacts:
    """Ask the single node, one after the other."""
    began = time.monotonic()
    executor = SymbolicExecutor()
    node = SingleNode(executor, workload.SMALL_PAGES, workload.CONTEXT_TOKENS)
    asks = workload.draw_workload(seed, lambda _: LINE, CONTROL.sizes)
    statuses: dict[str, str] = {}
    tenants: dict[str, str] = {}
    for number, ask in enumerate(a for each in asks.rounds for a in (*each.tenants, *each.oversize)):
        sampling = SamplingParams(temperature=0, seed=number + 1)
        request = Request(RequestId(ask.name), TenantId(ask.tenant), tuple(ask.token_ids), ask.max_tokens, sampling)
        ends = [event async for event in node.generate(request) if isinstance(event, EndOut)]
        statuses[request.id], tenants[request.id] = STATUS.get(ends[0].reason, "other"), ask.tenant
    node.close()
    facts = _facts(CONTROL, seed, _Judged(statuses, tenants), time.monotonic() - began)
    return replace(facts, leaked=int(executor.foreign > 0), oracle_leaks=executor.foreign)
