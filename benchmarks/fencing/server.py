"""One server, fenced and not in turn: interleaved runs, ratios of each pair, bootstrap intervals.

Both sides are the same processes, switched between runs, in the order ABBA. Two servers side by side were tried first:
two that were alike in everything differed by up to 15 % on a shared host, beyond what the interval of 16 pairs allows,
and that would have been taken for the fence.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, median

import psutil
from fencing.switch import VARIABLE, Switch
from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.core.settings import PoolSettings, Role, Settings
from kvfence.models.checkpoint import read_facts
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import TokensOut
from kvfence.runtime.life import Plan
from kvfence.runtime.supervisor import Supervisor

LEVELS = (1, 4, 16)
PROMPT_TOKENS = 16
NUM_NEW_MIN, NUM_NEW_MAX = 4, 64
RESAMPLES = 5_000
SWITCHED: dict[Role, str] = {"prefill": "fencing.switched_prefill", "decode": "fencing.switched_decode"}
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Interval(Struct, frozen=True):
    """A median of ratios and its 95 % percentile-bootstrap interval."""

    median: float
    low: float
    high: float


class Level(Struct, frozen=True):
    """One number of concurrent requests. Below 1, fenced is slower, in all three ratios: ``throughput`` is
    fenced/unfenced tokens a second, ``inter_token`` unfenced/fenced time, ``cpu`` unfenced/fenced CPU seconds of both
    workers for the same tokens (shown, not judged: neighbours disturb it less)."""

    concurrency: int
    pairs: int
    num_new: int
    tokens_per_s: float
    inter_token_ms: float
    throughput: Interval
    inter_token: Interval
    cpu: Interval


class Run(Struct, frozen=True):
    """One run. Units: tokens a second over all requests; seconds between two tokens of one."""

    num_new: int
    wall_s: float
    cpu_s: float
    tokens_per_s: float
    inter_token_s: float


def interval(ratios: Sequence[float]) -> Interval:
    """Give the median and its bootstrap interval; the draws are the same every time."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Interval(median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)])


async def compare_in_turn(model: Path, pairs: int, budget_s: float) -> list[Level]:
    """Measure every level; ``budget_s`` is for all runs together, which are as long as it allows."""
    async with _server(model) as server:
        ends = time.perf_counter() + budget_s
        levels = []
        for number, concurrency in enumerate(LEVELS):
            now = time.perf_counter()
            until = now + max(0.0, ends - now) / (len(LEVELS) - number)
            levels.append(await _measure(concurrency, server, pairs, until))
        return levels


@asynccontextmanager
async def _server(model: Path) -> AsyncIterator["Server"]:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    pages: dict[Role, int] = {"prefill": 128, "decode": 256}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = str(Path(folder) / "off")
        supervisor = Supervisor(
            Plan(Settings(pool=PoolSettings(prefix_reuse=False)), str(model), Rules.all(), pages, 256, SWITCHED)
        )
        try:
            await supervisor.start(lambda text: print(text, file=sys.stderr))
            yield Server(supervisor, read_facts(model).vocab_size)
        finally:
            await supervisor.stop()


class Server:
    """Answers the same requests run after run."""

    def __init__(self, supervisor: Supervisor, vocab: int) -> None:
        self._supervisor = supervisor
        self._vocab = vocab
        self._count = 0
        self._switch = Switch.from_environment()
        children = [process.child for process in supervisor.live.values()]
        self._workers = [psutil.Process(child.pid) for child in children if child is not None]

    async def run(self, concurrency: int, num_new: int, *, fenced: bool) -> Run:
        """Send this many requests at once and time their tokens."""
        self._switch.turn(fenced=fenced)
        began, cpu_s = time.perf_counter(), self._cpu_s()
        gaps = await asyncio.gather(*(self._one(number, num_new) for number in range(concurrency)))
        wall_s = time.perf_counter() - began
        return Run(num_new, wall_s, self._cpu_s() - cpu_s, concurrency * num_new / wall_s, fmean(gaps))

    def _cpu_s(self) -> float:
        return sum(sum(worker.cpu_times()[:2]) for worker in self._workers)

    async def _one(self, number: int, num_new: int) -> float:
        draw = random.Random(number)
        prompt = tuple(draw.randrange(3, self._vocab) for _ in range(PROMPT_TOKENS))
        self._count += 1
        request = Request(RequestId(f"r{self._count}"), TenantId("bench"), prompt, num_new, GREEDY)
        arrivals = []
        async for item in self._supervisor.dispatcher.generate(request):
            if isinstance(item, TokensOut):
                arrivals.append(time.perf_counter())
            elif item.reason is not EndReason.LENGTH:
                raise RuntimeError(f"a request ended with {item.reason.value}")
        return (arrivals[-1] - arrivals[0]) / (num_new - 1)


async def _measure(level: int, server: Server, pairs: int, until: float) -> Level:
    """Run the pairs. Both runs of a pair are of one length, which the time left decides."""
    await server.run(level, NUM_NEW_MIN, fenced=False)
    last = await server.run(level, NUM_NEW_MIN, fenced=True)
    done: list[tuple[Run, Run]] = []
    for number in range(pairs):
        num_new = _fitting(last, max(0.0, until - time.perf_counter()) / (2 * (pairs - number)))
        first = number % 2 == 0
        runs = {fenced: await server.run(level, num_new, fenced=fenced) for fenced in (first, not first)}
        done.append((runs[True], runs[False]))
        last = runs[True]
    print(f"{level} concurrent: {pairs} pairs", file=sys.stderr)
    fenced_runs = [fenced for fenced, _ in done]
    return Level(
        level,
        pairs,
        round(median(run.num_new for run in fenced_runs)),
        median(run.tokens_per_s for run in fenced_runs),
        1000 * median(run.inter_token_s for run in fenced_runs),
        _ratios(done, lambda fenced, bare: fenced.tokens_per_s / bare.tokens_per_s),
        _ratios(done, lambda fenced, bare: bare.inter_token_s / fenced.inter_token_s),
        _ratios(done, lambda fenced, bare: bare.cpu_s / fenced.cpu_s),
    )


def _fitting(last: Run, run_s: float) -> int:
    """Give the tokens that a run of this length holds, as the last one went."""
    first_s = last.wall_s - (last.num_new - 1) * last.inter_token_s
    return max(NUM_NEW_MIN, min(NUM_NEW_MAX, int((run_s - first_s) / last.inter_token_s)))


def _ratios(done: Sequence[tuple[Run, Run]], ratio: Callable[[Run, Run], float]) -> Interval:
    return interval([ratio(fenced, bare) for fenced, bare in done])
