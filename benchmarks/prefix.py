"""What prefix re-use saves a tenant, and what its timing tells another: times to the first token, compared.

Round by round: tenant A primes a prompt; then, in drawn order, tenant B asks for the same prompt and for a fresh one of
the same length. B's two must be equivalent: two one-sided signed-rank tests on their paired differences (TOST), within
a bound that is a share of what A itself saves. A asks its own prompt again: the positive control, without which the
test could not have seen anything. Two measures: the time to the first token, which other load on the machine disturbs,
and the processor time of both workers, which it hardly does. Then A fills the pool step by step, and what B still finds
of its own prompt is shown: the pool is shared, and that is a channel.

Runs on the embedded model, on ``--model``, or on the toy (``--model toy``); without HTTP, which would only add noise.
Prints a table; ``--json`` one document.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
from msgspec import Struct, to_builtins
from scipy import stats

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.core.settings import Role, Settings
from kvfence.models.bundled import embedded_model
from kvfence.models.checkpoint import read_facts
from kvfence.models.toy import write_toy_checkpoint
from kvfence.protocol.guards import Rules
from kvfence.runtime.generation import TokensOut
from kvfence.runtime.supervisor import Plan, Supervisor

PAGE_SIZE = 16
BOUND_SHARE = 0.1
"""B's two are equivalent where their difference is within this share of what a hit saves A."""

Times = npt.NDArray[np.float64]
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Asked(Struct, frozen=True):
    """One request: milliseconds to its first token and of both workers' processor time, and tokens found."""

    ttft: float
    cpu: float
    num_cached: int


class Round(Struct, frozen=True):
    """One round. ``primed``, ``fresh``: B's two; ``miss``, ``hit``: A's first and second."""

    miss: Asked
    primed: Asked
    fresh: Asked
    hit: Asked


class Comparison(Struct, frozen=True):
    """What one measure says. Units: milliseconds; of differences the median, with its 90% bootstrap interval.

    ``p_equivalent``: that B's difference is beyond the bound (small: equivalent). ``p_different``: that there is none.
    ``auc_*``: how often the measure tells one of a pair from the other; 0.5 is chance.
    """

    own_miss: float
    own_hit: float
    difference: float
    interval: tuple[float, float]
    bound: float
    p_equivalent: float
    p_different: float
    auc_other: float
    auc_own: float


class Verdict(Struct, frozen=True):
    """What all rounds say. ``hit_ratio``: A's, of its own tokens. ``others_hit_tokens``: found by B of A's prompts."""

    num_rounds: int
    num_tokens: int
    hit_ratio: float
    others_hit_tokens: int
    ttft: Comparison
    cpu: Comparison


class Server:
    """Answers prompts of two tenants."""

    def __init__(self, supervisor: Supervisor, vocab: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._supervisor = supervisor
        self._vocab = vocab
        self._draw = random.Random(0)
        self._count = 0
        children = [life.child for life in supervisor.live.values()]
        self._tasks = [Path(f"/proc/{child.pid}/task") for child in children if child is not None]

    def _cpu_ms(self) -> float:
        """Processor time of all threads of both workers so far."""
        stats_of = (task / "schedstat" for folder in self._tasks for task in folder.iterdir())
        return sum(int(path.read_text().split()[0]) for path in stats_of) / 1e6

    def prompt(self) -> tuple[int, ...]:
        """Draw a prompt that nobody has asked."""
        return tuple(self._draw.randrange(3, self._vocab) for _ in range(self.num_tokens))

    async def ask(self, tenant: str, prompt: tuple[int, ...]) -> Asked:
        """Ask for one token and time it."""
        self._count += 1
        request = Request(RequestId(f"r{self._count}"), TenantId(tenant), prompt, 1, GREEDY)
        cpu, began, ttft, num_cached = self._cpu_ms(), time.perf_counter(), 0.0, 0
        async for item in self._supervisor.dispatcher.generate(request):
            if isinstance(item, TokensOut):
                ttft, num_cached = (time.perf_counter() - began) * 1000, item.num_cached
        if not ttft:
            raise RuntimeError("a request ended without a token")
        await asyncio.sleep(0.02)  # its commit reaches prefill: what it wrote can be shared from then on
        return Asked(ttft, self._cpu_ms() - cpu, num_cached)


@asynccontextmanager
async def serving(model: Path, num_tokens: int, num_prompts: int) -> AsyncIterator[Server]:
    """Run one pair whose prefill pool holds this many prompts."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    each = -(-num_tokens // PAGE_SIZE)
    pages: dict[Role, int] = {"prefill": each * num_prompts, "decode": 4 * each + 1}
    supervisor = Supervisor(Plan(Settings(), str(model), Rules.all(), pages, num_tokens + PAGE_SIZE))
    try:
        await supervisor.start(lambda text: print(text, file=sys.stderr))
        yield Server(supervisor, read_facts(model).vocab_size, num_tokens)
    finally:
        await supervisor.stop()


async def play(server: Server, order: random.Random) -> Round:
    """One round."""
    theirs, fresh = server.prompt(), server.prompt()
    miss = await server.ask("a", theirs)
    asked: dict[bool, Asked] = {}
    for primed in order.sample((True, False), 2):
        asked[primed] = await server.ask("b", theirs if primed else fresh)
    return Round(miss, asked[True], asked[False], await server.ask("a", theirs))


def judge(rounds: Sequence[Round], num_tokens: int) -> Verdict:
    """Compare by both measures."""
    return Verdict(
        num_rounds=len(rounds),
        num_tokens=num_tokens,
        hit_ratio=fmean(each.hit.num_cached / num_tokens for each in rounds),
        others_hit_tokens=sum(each.primed.num_cached for each in rounds),
        ttft=compare(rounds, "ttft"),
        cpu=compare(rounds, "cpu"),
    )


def compare(rounds: Sequence[Round], measure: str) -> Comparison:
    """Test the differences of B's pairs for equivalence, and show what A saves."""
    primed, fresh, miss, hit = (
        np.array([getattr(getattr(each, name), measure) for each in rounds])
        for name in ("primed", "fresh", "miss", "hit")
    )
    difference, bound = primed - fresh, BOUND_SHARE * float(np.median(miss - hit))
    interval = stats.bootstrap((difference,), np.median, confidence_level=0.9, rng=0).confidence_interval
    above = stats.wilcoxon(difference + bound, alternative="greater").pvalue
    below = stats.wilcoxon(difference - bound, alternative="less").pvalue
    return Comparison(
        own_miss=float(np.median(miss)),
        own_hit=float(np.median(hit)),
        difference=float(np.median(difference)),
        interval=(float(interval.low), float(interval.high)),
        bound=bound,
        p_equivalent=float(max(above, below)),
        p_different=float(stats.wilcoxon(difference).pvalue),
        auc_other=_auc(primed, fresh),
        auc_own=_auc(hit, miss),
    )


def _auc(quick: Times, slow: Times) -> float:
    """How often one of the first kind is below one of the second."""
    return 1 - float(stats.mannwhitneyu(quick, slow).statistic) / (len(quick) * len(slow))


async def crowd(server: Server, num_prompts: int) -> dict[int, int]:
    """Give, by how many prompts A has asked since, the tokens that B finds of its own."""
    found = {}
    for number in range(num_prompts + 1):
        prompt = server.prompt()
        await server.ask("b", prompt)
        for _ in range(number):
            await server.ask("a", server.prompt())
        found[number] = (await server.ask("b", prompt)).num_cached
    return found


def show(verdict: Verdict, found: dict[int, int], num_prompts: int) -> None:
    """Print the tables."""
    print(f"{verdict.num_rounds} rounds, prompts of {verdict.num_tokens} tokens, pages of {PAGE_SIZE}; {machine()}")
    print(f"A finds {verdict.hit_ratio:.0%} of its own tokens; B finds {verdict.others_hit_tokens} of A's\n")
    for name, each in (("to the first token", verdict.ttft), ("processor", verdict.cpu)):
        low, high = each.interval
        print(f"{name}, milliseconds")
        print(f"  A, own prompt at first and again: {each.own_miss:.1f}, {each.own_hit:.1f} (AUC {each.auc_own:.2f})")
        shown = f"{each.difference:+.2f} ({low:+.2f} .. {high:+.2f}, AUC {each.auc_other:.2f})"
        print(f"  B, A's prompt less a fresh one:   {shown}")
        print(f"  bound {each.bound:.2f}: TOST p = {each.p_equivalent:.2g}; no difference p = {each.p_different:.2g}")
        print("  equivalent\n" if each.p_equivalent < 0.05 else "  not shown to be equivalent: more rounds\n")
    print(f"tokens B finds of its own {verdict.num_tokens}, once A asked more prompts (the pool holds {num_prompts})")
    print("  " + "  ".join(f"{number}: {tokens}" for number, tokens in found.items()))


def machine() -> str:
    """Say what it ran on."""
    load = os.getloadavg()[0]
    return f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}"


async def measure(given: argparse.Namespace) -> tuple[Verdict, dict[int, int]]:
    """Find the model, play all rounds, then fill the pool."""
    with tempfile.TemporaryDirectory() as folder:
        if given.model == "toy":
            model = write_toy_checkpoint(Path(folder) / "toy")
        else:
            model = Path(given.model) if given.model else embedded_model(lambda text: print(text, file=sys.stderr))
        return await play_all(model, given)


async def play_all(model: Path, given: argparse.Namespace) -> tuple[Verdict, dict[int, int]]:
    """Play all rounds on a model."""
    order = random.Random(1)
    async with serving(model, given.tokens, given.prompts) as server:
        for _ in range(2):
            await play(server, order)  # the first passes are slower
        rounds = [await play(server, order) for _ in range(given.rounds)]
        return judge(rounds, given.tokens), await crowd(server, given.prompts)


def main() -> None:
    """Measure and print; exit 1 where processor times were not shown to be equivalent, or B found anything of A's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=40, help="rounds measured")
    parser.add_argument("--tokens", type=int, default=136, help="tokens of a prompt")
    parser.add_argument("--prompts", type=int, default=5, help="prompts that prefill's pool holds")
    parser.add_argument("--model", default="", help="checkpoint, or toy; without it the embedded one")
    given = parser.parse_args()
    verdict, found = asyncio.run(measure(given))
    if given.json:
        print(json.dumps({**to_builtins(verdict), "found_after": found, "machine": machine()}, indent=2))
    else:
        show(verdict, found, given.prompts)
    sys.exit(verdict.cpu.p_equivalent >= 0.05 or verdict.others_hit_tokens > 0)


if __name__ == "__main__":
    main()
