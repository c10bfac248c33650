"""The runs: which pool, which guards, and how one of them is played from start to verdict.

A run is given a server by whoever composes one; it talks to it over HTTP only and reads the traces afterwards.
Not for: starting servers (``cli/incident.py``) or comparing runs (``findings.py``).
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec import Struct, json

from kvfence.core.ids import AttemptId
from kvfence.incident.alarms import Judged
from kvfence.incident.client import Answer, Door, ask
from kvfence.incident.detector import Plan, Report
from kvfence.incident.findings import RunFacts, count_tenants
from kvfence.incident.oracle import Leak, Reading, Traces, find_leaks, read_traces
from kvfence.incident.scenarios import Scenario
from kvfence.incident.story import Sample, Telling, tell
from kvfence.incident.workload import ASKER, PAGE_SIZE, Workload
from kvfence.trace.reader import read_trace
from kvfence.trace.record import TraceStep

DETECTOR_S = 600.0
"""How long the detector may take over one group."""


class Served(Struct):
    """A server that answers. ``cpu_s``: what its processes have used so far.

    Units: prefill_tokens, decode_tokens: the pools; memory_fraction: 0 where the pool was given in tokens.
    """

    door: Door
    prefill_tokens: int
    decode_tokens: int
    cpu_s: Callable[[], float]
    memory_fraction: float = 0.0


OpenServer = Callable[[Scenario, Path], AbstractAsyncContextManager[Served]]
"""Starts the server of a scenario; its traces go into the folder."""


class Run(Struct, frozen=True):
    """Everything that one run left behind.

    ``tenants``: tenant by request id. ``readings``: empty for the control, which has no hand-offs.
    """

    scenario: Scenario
    seed: int
    report: Report
    others: tuple[Answer, ...]
    readings: dict[AttemptId, Reading]
    tenants: dict[str, str]
    leaks: tuple[Leak, ...]
    prefill_tokens: int
    memory_fraction: float
    wall_s: float
    cpu_s: float

    @property
    def statuses(self) -> dict[str, int]:
        """Oversize answers by HTTP status."""
        return dict(sorted(Counter(str(answer.status) for answer in self.report.answers).items()))

    @property
    def leaked(self) -> tuple[Leak, ...]:
        """Leaks among oversize answers that were given as HTTP 200."""
        given = {a.request_id for a in self.report.answers if a.status == 200 and not a.error_frames}
        return tuple(leak for leak in self.leaks if leak.request in given)


async def play(scenario: Scenario, workload: Workload, folder: Path, open_server: OpenServer) -> Run:
    """Start a server, let tenants and the detector ask, stop it, and read what happened from its traces."""
    began = time.monotonic()
    asks = workload if scenario.every_round else workload.first_tenants_only()
    async with open_server(scenario, folder) as served:
        report, others = await _converse(served, asks)
        cpu_s = served.cpu_s()
    readings = read_traces(load_traces(folder)) if scenario.disaggregated else {}
    tenants = {answer.request_id: answer.tenant for answer in (*others, *report.answers, *report.controls)}
    return Run(
        scenario,
        workload.seed,
        report,
        tuple(others),
        readings,
        tenants,
        tuple(find_leaks(readings, tenants)),
        served.prefill_tokens,
        served.memory_fraction,
        time.monotonic() - began,
        cpu_s,
    )


async def _converse(served: Served, workload: Workload) -> tuple[Report, list[Answer]]:
    """Let the tenants ask, then the detector, round by round."""
    detector = await start_detector(served.door, workload)
    others: list[Answer] = []
    try:
        await detector.hear()
        async with served.door.client() as client:
            for number in workload.rounds:
                others += await asyncio.gather(*(ask(client, served.door, each) for each in number.tenants))
                await detector.say(b"next\n")
        report = json.decode(await detector.say(b"end\n"), type=Report)
    finally:
        await detector.stop()
    return report, others


class DetectorProcess:
    """The detector's process, and the pipe to it. Owner: whoever started it stops it."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    async def hear(self) -> bytes:
        """Wait for one line."""
        if self._child.stdout is None:
            raise EOFError("the detector has no pipe")
        async with asyncio.timeout(DETECTOR_S):
            line = await self._child.stdout.readline()
        if not line:
            raise EOFError("the detector ended early; see its words above")
        return line

    async def say(self, line: bytes) -> bytes:
        """Write one line and wait for the answer."""
        if self._child.stdin is None:
            raise EOFError("the detector has no pipe")
        self._child.stdin.write(line)
        await self._child.stdin.drain()
        return await self.hear()

    async def stop(self) -> None:
        """End it, by force if need be."""
        if self._child.returncode is None:
            self._child.kill()
        await self._child.wait()


async def start_detector(door: Door, workload: Workload) -> DetectorProcess:
    """Start the detector with its own requests, its own key and the list of planted markers."""
    own = Door(door.url, door.model, {ASKER: door.keys[ASKER]})
    plan = Plan(own, workload.controls, tuple(each.oversize for each in workload.rounds), workload.markers)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kvfence.incident.detector",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    if child.stdin is None:
        raise EOFError("the detector has no pipe")
    child.stdin.write(json.encode(plan) + b"\n")
    await child.stdin.drain()
    return DetectorProcess(child)


def load_traces(folder: Path, page_size: int = PAGE_SIZE) -> Traces:
    """Read a pair's traces from its folder."""
    return Traces(page_size, *(_steps(folder, role) for role in ("gateway", "prefill", "decode")))


def _steps(folder: Path, role: str) -> tuple[TraceStep, ...]:
    steps: list[TraceStep] = []
    for path in sorted(folder.glob(f"{role}*.ndjson"), key=lambda each: each.stat().st_ctime):
        steps += read_trace(path)[1]
    return tuple(steps)


def facts_of(run: Run) -> RunFacts:
    """Give a run in numbers."""
    judged = run.report.judged
    return RunFacts(
        name=run.scenario.name,
        seed=run.seed,
        pool_tokens=run.prefill_tokens,
        memory_fraction=run.memory_fraction,
        guards="all" if run.scenario.guarded else "those of the incident's engine",
        statuses=run.statuses,
        leaked=len(run.leaked),
        oracle_leaks=len({leak.request for leak in run.leaks}),
        status_alarms=_status_alarms(run),
        marker_alarms=sum(each.marker for each in judged),
        text_markers=sum(each.text for each in judged),
        amnesia=sum(each.amnesia for each in judged),
        too_fast=sum(each.too_fast for each in judged),
        tenants_read=count_tenants(leak.slots for leak in run.leaked),
        generated=sum(leak.generated > 0 for leak in run.leaked),
        others=dict(sorted(Counter(str(answer.status) for answer in run.others).items())),
        wall_s=round(run.wall_s, 1),
        cpu_s=round(run.cpu_s, 1),
    )


def _status_alarms(run: Run) -> int:
    """Count answers whose status or frames tell that something is wrong; a 400 where one is due does not."""
    if run.scenario.refuses:
        return sum(answer.status != 400 for answer in run.report.answers)
    return sum(each.status for each in run.report.judged)


def sample_of(run: Run, workload: Workload) -> Sample | None:
    """Tell of the most readable leak of a run; None where nothing leaked."""
    judged = {each.name: each for each in run.report.judged}
    answers = {answer.request_id: answer for answer in run.report.answers}
    told = [(_readable(judged[answers[leak.request].name], leak), leak) for leak in run.leaked]
    if not told:
        return None
    _, leak = max(told, key=lambda pair: pair[0])
    answer = answers[leak.request]
    marks = judged[answer.name]
    found = marks.exact or marks.fuzzy
    source = found[0][0] if found else max(leak.slots, key=lambda tenant: leak.slots[tenant])
    telling = Telling(run.readings[leak.attempt], run.readings, run.tenants, leak)
    pages, steps = tell(telling)
    record = workload.records[source]
    markers = tuple(marker for tenant, marker in found if tenant == source)
    return Sample(answer.name, str(leak.attempt), answer.text, record.line * 3, source, markers, pages, steps)


def _readable(judged: Judged, leak: Leak) -> tuple[int, int, int]:
    """Prefer many markers, few tenants, and a part of another's answer."""
    return (len(judged.exact), -len(leak.slots), leak.generated)
