"""Every worker of two pairs is killed and stopped at every stage of a hand-off, under other clients' requests.

``make test`` runs those marked quick; ``make test-faults`` all.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from msgspec import Struct

from kvfence.core.settings import Role
from kvfence.protocol.handoff import GatewayHandoff
from tests.faults.harms import HARMS, Harm
from tests.faults.numbers import Numbers
from tests.faults.site import ANSWER_S, Crowd, Seen, Site, running_site
from tests.faults.stages import PROMPT_TOKENS, STAGES, Stage, Victim
from tests.integration.runtime.pairs import Pair, Scene, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
SCENE = Scene(num_prefill=2, num_decode=2, decode_pages=40, heartbeat_timeout_s=5.0, trace=False)
QUICK = {("computing", "prefill", True, "stopped"), ("streaming", "decode", True, "killed")}


class Case(Struct, frozen=True):
    """Which worker is harmed how, and when. ``own``: the victim's own worker, or the other of the role."""

    stage: Stage
    role: Role
    own: bool
    harm: Harm

    @property
    def name(self) -> str:
        """What it is called."""
        whose = "own" if self.own else "other"
        return f"{self.stage.name}-{whose}-{self.role}-{self.harm.name}"

    @property
    def costs(self) -> bool:
        """Is the victim lost?"""
        return self.own and (self.role == "decode" or self.stage.needs_prefill)


def cases() -> Iterator[object]:
    """Every worker, way and stage."""
    for stage in STAGES:
        roles: tuple[Role, ...] = ("prefill", "decode")
        for role in roles:
            for own in (True, False):
                for harm in HARMS:
                    quick = (stage.name, role, own, harm.name) in QUICK
                    case = Case(stage, role, own, harm)
                    yield pytest.param(case, id=case.name, marks=() if quick else pytest.mark.faults)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Two pairs behind HTTP, for the module."""
    async with running_site(SCENE, tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.mark.parametrize("case", list(cases()))
async def test_a_worker_is_lost(site: Site, case: Case, numbers: Numbers) -> None:
    """Its client hears so within 5 s, in OpenAI's shape, never as a normal finish; others are right; pages return."""
    pair = site.pair
    async with Crowd(site.client).around() as crowd:
        try:
            victim = await case.stage.reach(site.client, pair.faults)
            number = await worker_number(pair, case)
            await harm(pair, case, number, victim)
            if case.costs:
                after_s = victim.seen.ended_s - victim.harmed_s
                numbers.add(case.harm.name, after_s)
                assert victim.seen.refused if case.stage.before_first_token else victim.seen.broken_off, victim.seen
                assert after_s < ANSWER_S
        finally:
            pair.faults.let_go()
        await asyncio.gather(victim.request[1], *(task for _, task in victim.others))
        assert case.costs or victim.seen.whole, victim.seen
        before = len(crowd.seen)
        await until("others are served on", lambda: len(crowd.seen) >= before + 6)
    judge(crowd.seen, [seen for seen, _ in victim.others], case)
    await pair.all_free()


async def harm(pair: Pair, case: Case, number: int, victim: Victim) -> None:
    """Harm the worker, wait until its client was told, if it is, and until a successor serves."""
    restarts, pid = pair.restarts(case.role, number), pair.pid(case.role, number)
    victim.harmed_s = time.monotonic()
    case.harm.begin(pid)
    try:
        if case.costs:
            await until("the victim's client hears of it", victim.request[1].done)
        pair.faults.let_go()
        await pair.ready(restarts + 1, case.role, number)
    finally:
        if pair.pid(case.role, number) == pid:
            case.harm.end(pid)


async def worker_number(pair: Pair, case: Case) -> int:
    """Wait until the victim is placed. Gives: the number of the worker that the case means."""

    def placed() -> list[GatewayHandoff]:
        return [h for h in pair.node().handoffs.values() if h.num_tokens == PROMPT_TOKENS]

    await until("the victim is placed", placed)
    numbers = {life.incarnation: slot.number for slot, life in pair.supervisor.live.items()}
    own = numbers[getattr(placed()[0], case.role)]
    return own if case.own else 1 - own


def judge(crowd: list[Seen], fillers: list[Seen], case: Case) -> None:
    """Others are right; of those that were on the harmed worker each lane lost at most one, and heard so properly."""
    lost = [seen for seen in [*crowd, *fillers] if not seen.whole]
    assert all(seen.refused or seen.broken_off for seen in lost), lost
    assert len(lost) <= Crowd.LANES + len(fillers), f"{len(lost)} lost in {case.name}"
    assert sum(seen.whole for seen in crowd) >= Crowd.LANES
