"""Workers over Mooncake on loopback: right answers, and deaths and stalls at a hand-off's most dangerous moment."""

import signal
import time
from pathlib import Path

import pytest

from kvfence.core.limits import Limits
from kvfence.core.settings import Role, TransportSettings
from kvfence.protocol.commands import Post
from kvfence.protocol.messages import EndReason
from tests.integration.mooncake.programs import PROGRAMS
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, Stream, running_pair, until

pytestmark = [pytest.mark.mooncake, pytest.mark.asyncio]

HEARD_MAX_S = 8.0
LOCAL = TransportSettings(kind="mooncake")
SCENE = Scene(transport=LOCAL, modules=PROGRAMS, silent_timeout_s=1.0, heartbeat_timeout_s=4.0)


async def begun(pair: Pair) -> tuple[Stream, Stream]:
    """Give a running request, held in its middle, and one of which a batch is about to be sent."""
    pair.faults.hold(60)
    running = pair.stream(range(30), 60)
    await running.reach(20)
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    other = pair.stream(range(500, 700), 20)
    await until("a batch is about to be sent", pair.faults.fired)
    return running, other


async def test_answers_are_right_and_batches_are_bounded(tmp_path: Path) -> None:
    """Two prefill and two decode workers, twelve requests: each gets what it gets alone, in batches of at most 3."""
    scene = Scene(transport=LOCAL, modules=PROGRAMS, num_prefill=2, num_decode=2, limits=Limits(batch_pages_max=3))
    async with running_pair(scene, tmp_path) as pair:
        streams = [pair.stream(range(i * 13, i * 13 + 20 + 9 * i), 25) for i in range(12)]
        for stream in streams:
            assert await stream.finish(30.0) is EndReason.LENGTH
            assert stream.right
        await pair.all_free()
        posts = [command for step in pair.steps("prefill") for command in step.commands if isinstance(command, Post)]
        assert posts
        assert max(len(post.source) for post in posts) <= 3
        assert all(post.session for post in posts)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_lost_in_mid_transfer(tmp_path: Path, role: Role, how: signal.Signals) -> None:
    """Killed or stopped: the client hears so in time, its successor serves, and every page is FREE in the end."""
    async with running_pair(SCENE, tmp_path) as pair:
        await pair.works()
        running, lost = await begun(pair)
        start = time.monotonic()
        pair.signal(role, how)
        (pair.faults.path / "hang").unlink()
        assert await lost.finish() in (EndReason.WORKER_LOST, EndReason.TRANSFER_FAILED)
        assert time.monotonic() - start < HEARD_MAX_S
        assert lost.tokens == []
        pair.faults.let_go()
        ended = await running.finish()
        assert ended is (EndReason.LENGTH if role == "prefill" else EndReason.WORKER_LOST)
        assert running.right
        await pair.ready(1, role)
        await pair.all_free(timeout_s=30.0)
        await pair.works()
        await pair.all_free()


async def test_a_stall_that_ends_costs_one_request(tmp_path: Path) -> None:
    """Decode is silent for longer than the time-out and comes back before anybody replaces it: nothing foreign lands.

    Its late bytes fall into quarantine, the session is rebuilt, and the requests that follow are right.
    """
    scene = Scene(transport=LOCAL, modules=PROGRAMS, silent_timeout_s=30.0, heartbeat_timeout_s=60.0)
    async with running_pair(scene, tmp_path) as pair:
        await pair.works()
        running, lost = await begun(pair)
        pair.signal("decode", signal.SIGSTOP)
        (pair.faults.path / "hang").unlink()
        await until("prefill gave the batch up", lambda: failed_batches(pair), 12.0)
        pair.signal("decode", signal.SIGCONT)
        assert await lost.finish() is EndReason.TRANSFER_FAILED
        pair.faults.let_go()
        assert await running.finish() is EndReason.LENGTH
        assert running.right
        await pair.all_free(timeout_s=30.0)
        assert pair.life("decode").beat.counters["sessions_rebuilt"] >= 1
        assert pair.restarts("decode") == 0
        await pair.works()


def failed_batches(pair: Pair) -> int:
    """How many batches ended in doubt."""
    return sum(getattr(step.event, "success", True) is False for step in pair.steps("prefill"))


async def test_a_call_that_does_not_come_back(tmp_path: Path) -> None:
    """The client of a batch whose call hangs hears so, and so does the one queued behind it; then everything serves."""
    scene = Scene(transport=LOCAL, modules=PROGRAMS, silent_timeout_s=30.0, heartbeat_timeout_s=60.0)
    async with running_pair(scene, tmp_path) as pair:
        await pair.works()
        pair.faults.hang()
        pair.faults.arm(Fault("hang"))
        start = time.monotonic()
        stuck = pair.stream(range(500, 740), 20)
        await until("a batch is about to be sent", pair.faults.fired)
        waiting = pair.stream(range(900, 1000), 5)
        assert await stuck.finish() is EndReason.TRANSFER_FAILED
        assert time.monotonic() - start < HEARD_MAX_S
        assert await waiting.finish() is EndReason.TRANSFER_FAILED
        pair.faults.let_go()
        await pair.all_free(timeout_s=30.0)
        await pair.works()
