"""A run: the honest hand-off first, then each case as often as asked, and what all of that shows.

Never more than one request is open, so that what a block held last is known. A pair that serves somebody else is left
alone: a stale block could be theirs.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from kvfence.probe.handoff import sglang, vllm
from kvfence.probe.handoff.bench import Bench, Case, Lengths
from kvfence.probe.handoff.errors import NotTried
from kvfence.probe.handoff.pair import Pair, Role, Site
from kvfence.probe.handoff.trial import Answer, Seen, gravest, judge
from kvfence.probe.lexicon import Lexicon, lexicon_of
from kvfence.probe.markers import draw_markers
from kvfence.probe.words import LISTS

TENANTS = ("asks", "other")
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting", "sglang:num_running_reqs", "sglang:num_queue_reqs")
IDLE_S = 10.0
"""So long others' requests may take to be over."""

DYING_S = 3.0
"""So long after an error decode may take to be found dead."""

POLL_S = 0.5


class Engine(StrEnum):
    """Whose hand-off it is."""

    VLLM = "vllm"
    SGLANG = "sglang"


CASES: dict[Engine, tuple[Case, ...]] = {Engine.VLLM: vllm.CASES, Engine.SGLANG: sglang.CASES}
HONEST: dict[Engine, tuple[Case, ...]] = {Engine.VLLM: vllm.HONEST, Engine.SGLANG: sglang.HONEST}


PROOFS = (Answer.LEAK, Answer.CRASHED)
"""What is shown whatever an honest hand-off does."""


class Run(Struct, frozen=True, kw_only=True):
    """What is to be run. ``block_size`` 0: as prefill says; ``tries``: of each case, fewer once it was found."""

    engine: Engine
    site: Site
    cases: tuple[Case, ...]
    seed: int
    tries: int = 2
    lease_s: float = 30.0
    block_size: int = 0

    @property
    def all_cases(self) -> tuple[Case, ...]:
        """Give the cases, the honest hand-offs before them."""
        return (*HONEST[self.engine], *self.cases)

    @property
    def requests_max(self) -> int:
        """Give how many requests it sends at most, one more a try to compare with."""
        return sum((case.requests + 1) * self.tries for case in self.all_cases)


class Found(Struct, frozen=True, kw_only=True):
    """One case: what its tries show together, and each try."""

    case: Case
    answer: Answer
    tries: tuple[Seen, ...]


class Record(Struct, frozen=True, kw_only=True):
    """A whole run. ``why``: what kept it from beginning or from ending, empty where nothing did."""

    run: Run
    model: str
    block_size: int
    found: tuple[Found, ...]
    requests: int
    tokens: int
    wall_s: float
    why: str = ""


Watch = Callable[[Found], None]


async def probe(run: Run, watch: Watch = lambda _: None) -> Record:
    """Carry a run out; give its record, whatever ended it."""
    began_s = time.monotonic()
    found: list[Found] = []
    why, lengths = "", Lengths(block=0)
    async with Pair(run.site) as pair:
        try:
            lengths = await _prepare(run, pair)
            bench = Bench(pair, lengths, _markers(run.seed), run.lease_s)
            for case in run.all_cases:
                found.append(await _case(run, bench, case, found))
                watch(found[-1])
        except NotTried as error:
            why = str(error)
        except asyncio.CancelledError:
            why = "it was stopped"
        return Record(
            run=run,
            model=pair.model,
            block_size=lengths.block,
            found=tuple(found),
            requests=pair.requests,
            tokens=pair.tokens,
            wall_s=time.monotonic() - began_s,
            why=why,
        )


def _markers(seed: int) -> Iterator[str]:
    """Give both tenants' markers in turn, each once."""
    planted = draw_markers(seed, [f"{tenant}-{number}" for number in range(24) for tenant in TENANTS]).planted
    return (marker for pair in zip(*planted.values(), strict=True) for marker in pair)


async def _prepare(run: Run, pair: Pair) -> Lengths:
    """Learn what the cases need to know of the pair.

    Raises:
        NotTried: a worker does not answer or does not say it, or somebody else is served.
    """
    for role in Role:
        if not await pair.is_up(role):
            raise NotTried(f"{role} does not answer with 200 at {pair.site.urls[role]}/health")
    if not pair.model:
        names = await pair.models()
        if not names:
            raise NotTried("prefill lists no model at /v1/models: name it with --model")
        pair.model = names[0]
    await _idle(pair)
    limits = {role: await sglang.limit_of(pair, role) for role in Role} if run.engine is Engine.SGLANG else {}
    block = run.block_size or (await _block_size(pair) if run.engine is Engine.VLLM else 1)
    return Lengths(block=block, limits={role: limit for role, limit in limits.items() if limit})


async def _block_size(pair: Pair) -> int:
    sizes = set()
    for role in Role:
        samples = (await pair.metrics(role)).get("vllm:cache_config_info", [])
        sizes |= {labels.get("block_size", "") for labels, _ in samples}
    if len(sizes) != 1 or not (size := sizes.pop()).isdigit() or int(size) < 1:
        raise NotTried("the workers do not name one block_size in vllm:cache_config_info: name it with --block-size")
    return int(size)


async def _idle(pair: Pair) -> None:
    """Make sure that nobody else is served, as far as the workers tell."""
    deadline = time.monotonic() + IDLE_S
    while True:
        samples = [each for role in Role for name, each in (await pair.metrics(role)).items() if name in BUSY]
        if not any(value for each in samples for _, value in each):
            return
        if time.monotonic() > deadline:
            raise NotTried("the pair serves other requests: what these leave behind is not the probe's to read")
        await asyncio.sleep(POLL_S)


async def _case(run: Run, bench: Bench, case: Case, before: Sequence[Found]) -> Found:
    """Try one case until it is found, or as often as asked."""
    if any(each.answer is Answer.CRASHED for each in before):
        return Found(case=case, answer=Answer.UNKNOWN, tries=(_untold("decode has crashed in a case before"),))
    tries: list[Seen] = []
    while len(tries) < run.tries and not any(each.answer.is_bad for each in tries):
        try:
            tries.append(await _try(bench, case, lexicon_of(LISTS)))
        except NotTried as error:
            tries.append(_untold(str(error)))
            break
    answer = gravest(each.answer for each in tries)
    if case not in HONEST[run.engine] and answer not in PROOFS and not _is_sound(before, run):
        why = "an honest hand-off is not answered rightly either, so this says nothing of the case"
        return Found(case=case, answer=Answer.UNKNOWN, tries=(*tries, _untold(why)))
    return Found(case=case, answer=answer, tries=tuple(tries))


def _is_sound(before: Sequence[Found], run: Run) -> bool:
    """Was each honest hand-off answered with its prompt's own answer, and no try of one refused or answered wrongly?

    A try in which the model did not repeat its marker says nothing of the pair.
    """
    honest = [{seen.answer for seen in each.tries} for each in before if each.case in HONEST[run.engine]]
    return all(Answer.CORRECT in seen and seen <= {Answer.CORRECT, Answer.UNKNOWN} for seen in honest)


def _untold(why: str) -> Seen:
    return Seen(answer=Answer.UNKNOWN, why=why)


async def _try(bench: Bench, case: Case, lexicon: Lexicon) -> Seen:
    await _idle(bench.pair)
    tried = await case.attempt(bench)
    is_up = await _is_up(bench.pair, wait=tried.reply.status != 200)
    return await judge(tried, lexicon, is_up=is_up, reference=lambda: bench.alone(tried.own))


async def _is_up(pair: Pair, *, wait: bool) -> bool:
    """Tell whether decode lives. An engine takes a moment to be found dead, so an error is looked at for longer."""
    deadline = time.monotonic() + (DYING_S if wait else 0.0)
    while await pair.is_up(Role.DECODE):
        if time.monotonic() >= deadline:
            return True
        await asyncio.sleep(POLL_S)
    return False
