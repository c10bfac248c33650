"""A guarded and an unguarded server side by side: interleaved runs, ratios of each pair, bootstrap intervals.

Both servers live all the time and work in turn, in the order ABBA, so that drift of the machine hits both alike.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.core.settings import Role, Settings
from kvfence.models.checkpoint import read_facts
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import TokensOut
from kvfence.runtime.supervisor import Plan, Supervisor

LEVELS = (1, 4, 16)
PROMPT_TOKENS = 16
NUM_NEW_MIN, NUM_NEW_MAX = 4, 64
RESAMPLES = 5_000
UNGUARDED: dict[Role, str] = {"prefill": "fencing.unguarded_prefill", "decode": "fencing.unguarded_decode"}
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Interval(Struct, frozen=True):
    """A median of ratios and its 95 % percentile-bootstrap interval."""

    median: float
    low: float
    high: float


class Level(Struct, frozen=True):
    """One number of concurrent requests. ``throughput``: guarded/unguarded; ``inter_token``: unguarded/guarded, so
    that below 1 is slower in both."""

    concurrency: int
    pairs: int
    num_new: int
    guarded_tokens_per_s: float
    guarded_inter_token_ms: float
    throughput: Interval
    inter_token: Interval


class Run(Struct, frozen=True):
    """One run. Units: tokens a second over all requests; seconds between two tokens of one."""

    num_new: int
    wall_s: float
    tokens_per_s: float
    inter_token_s: float


def interval(ratios: Sequence[float]) -> Interval:
    """Give the median and its bootstrap interval; the draws are the same every time."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Interval(median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)])


async def compare_servers(model: Path, pairs: int, budget_s: float) -> list[Level]:
    """Measure every level; ``budget_s`` is for all runs together, which are as long as it allows."""
    async with _server(model, Rules.all(), {}) as guarded, _server(model, _bare(), UNGUARDED) as unguarded:
        ends = time.perf_counter() + budget_s
        levels = []
        for number, concurrency in enumerate(LEVELS):
            now = time.perf_counter()
            until = now + max(0.0, ends - now) / (len(LEVELS) - number)
            levels.append(await _measure(concurrency, (guarded, unguarded), pairs, until))
        return levels


def _bare() -> Rules:
    return Rules.without("stamp-at-read", "stamp-at-adopt", "digest-matches", "zero-tail")


@asynccontextmanager
async def _server(model: Path, rules: Rules, modules: dict[Role, str]) -> AsyncIterator["Client"]:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    pages: dict[Role, int] = {"prefill": 128, "decode": 256}
    plan = Plan(Settings(), str(model), rules, pages, 256)
    if modules:
        plan = replace(plan, modules=modules)
    supervisor = Supervisor(plan)
    try:
        await supervisor.start(lambda text: print(text, file=sys.stderr))
        yield Client(supervisor, read_facts(model).vocab_size)
    finally:
        await supervisor.stop()


class Client:
    """Sends the same requests to one server, run after run."""

    def __init__(self, supervisor: Supervisor, vocab: int) -> None:
        self._supervisor = supervisor
        self._vocab = vocab
        self._count = 0

    async def run(self, concurrency: int, num_new: int) -> Run:
        """Send this many requests at once and time their tokens."""
        began = time.perf_counter()
        gaps = await asyncio.gather(*(self._one(number, num_new) for number in range(concurrency)))
        wall_s = time.perf_counter() - began
        return Run(num_new, wall_s, concurrency * num_new / wall_s, fmean(gaps))

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


async def _measure(level: int, servers: tuple[Client, Client], pairs: int, until: float) -> Level:
    """Run the pairs. Both runs of a pair are of one length, which the time left decides."""
    for server in servers:
        last = await server.run(level, NUM_NEW_MIN)
    guarded, unguarded = [], []
    for number in range(pairs):
        num_new = _fitting(last, max(0.0, until - time.perf_counter()) / (2 * (pairs - number)))
        order = (0, 1) if number % 2 == 0 else (1, 0)
        runs = {which: await servers[which].run(level, num_new) for which in order}
        guarded.append(runs[0])
        unguarded.append(runs[1])
        last = runs[order[1]]
    print(f"{level} concurrent: {pairs} pairs", file=sys.stderr)
    return Level(
        level,
        pairs,
        round(median(run.num_new for run in guarded)),
        median(run.tokens_per_s for run in guarded),
        1000 * median(run.inter_token_s for run in guarded),
        _ratios(lambda g, u: g.tokens_per_s / u.tokens_per_s, guarded, unguarded),
        _ratios(lambda g, u: u.inter_token_s / g.inter_token_s, guarded, unguarded),
    )


def _fitting(last: Run, run_s: float) -> int:
    """Give the tokens that a run of this length holds, as the last one went."""
    first_s = last.wall_s - (last.num_new - 1) * last.inter_token_s
    return max(NUM_NEW_MIN, min(NUM_NEW_MAX, int((run_s - first_s) / last.inter_token_s)))


def _ratios(ratio: Callable[[Run, Run], float], guarded: list[Run], unguarded: list[Run]) -> Interval:
    return interval([ratio(g, u) for g, u in zip(guarded, unguarded, strict=True)])
