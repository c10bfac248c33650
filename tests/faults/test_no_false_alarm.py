"""A million page comparisons under preemption, aborts and restarts: no guard takes a sound page for a bad one."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from kvfence.core.limits import Limits
from kvfence.protocol.messages import EndReason
from tests.faults.harms import Kill
from tests.faults.numbers import Numbers
from tests.integration.runtime.pairs import Pair, Scene, Stream, running_pair

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
COMPARISONS = 1_000_000
LANES = 24
SCENE = Scene(
    num_prefill=2,
    num_decode=2,
    prefill_pages=64,
    decode_pages=150,
    trace=False,
    limits=Limits(queue_tenant_max=256),
)
ALARMS = ("stamp-at-adopt", "stamp-at-read", "digest-matches", "count-matches", "layout-agrees")


def compared(pair: Pair) -> int:
    """Pages compared by all workers, of former lives too."""
    return sum(beat.counters.get("pages_compared", 0) for beat in pair.supervisor.totals().values())


async def lane(pair: Pair, number: int, ends: Counter[EndReason], over: asyncio.Event) -> None:
    """Ask for long answers one after the other; leave one in five in the middle."""
    draw = random.Random(number)
    while not over.is_set():
        start, num_tokens = draw.randrange(40_000), draw.randrange(1, 200)
        stream: Stream = pair.stream(range(start, start + num_tokens), draw.randrange(20, 250), tenant=f"t{number}")
        if draw.random() < 0.2:
            await asyncio.wait({stream._task}, timeout=draw.random())
            await stream.close()
            ends[EndReason.CANCELLED] += 1
        else:
            ends[await stream.finish(120.0)] += 1
        assert stream.right


async def test_no_false_alarm(tmp_path: Path, numbers: Numbers) -> None:
    """Every answer is right to its last token, no guard of bytes refuses once, and every page returns."""
    ends: Counter[EndReason] = Counter()
    began_s, over, draw = time.monotonic(), asyncio.Event(), random.Random(9)
    async with running_pair(SCENE, tmp_path) as pair:
        lanes = [asyncio.create_task(lane(pair, number, ends, over)) for number in range(LANES)]
        kills, next_kill = 0, 50_000
        while compared(pair) < COMPARISONS:
            if compared(pair) > next_kill:
                role, number = draw.choice(pair.slots)
                if pair.life(role, number).state == "ready":
                    Kill().begin(pair.pid(role, number))
                    kills += 1
                next_kill += 60_000
            for task in lanes:
                if task.done():
                    task.result()
            assert time.monotonic() - began_s < 500
            await asyncio.sleep(0.05)
        over.set()
        await asyncio.gather(*lanes)
        await pair.all_free()
        totals = pair.supervisor.totals().values()
        outcomes = sum((Counter(beat.outcomes) for beat in totals), Counter())
        refused = [d for beat in totals for d in beat.decisions if d[0] in ALARMS and d[2] == "refuse"]
        restarts = sum(pair.supervisor.restarts.values())
        numbers.note(
            pages_compared=compared(pair),
            took_s=round(time.monotonic() - began_s),
            preempted=outcomes["preempted"],
            cancelled_by_clients=ends[EndReason.CANCELLED],
            workers_killed=kills,
            lost_with_a_worker=ends[EndReason.WORKER_LOST],
            answered=ends[EndReason.LENGTH],
            false_alarms=len(refused),
        )
    assert refused == []
    assert set(ends) <= {EndReason.LENGTH, EndReason.CANCELLED, EndReason.WORKER_LOST, EndReason.NO_WORKER}
    assert not any("mismatch" in outcome for outcome in outcomes)
    assert restarts == kills >= 10
    assert outcomes["preempted"] > 10
    assert ends[EndReason.LENGTH] > 100
