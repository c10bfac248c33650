"""Two prefill and two decode workers: requests spread, and what happens to one is not noticed on other pairs."""

import asyncio
import signal

import pytest

from kvfence.core.settings import Role
from kvfence.protocol.events import PeerGone
from kvfence.protocol.messages import EndReason
from tests.integration.runtime.courses import QUARANTINED
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, Stream, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCENE = Scene(num_prefill=2, num_decode=2)


async def on_each_pair(pair: Pair, num_tokens: int = 40) -> dict[tuple[int, int], Stream]:
    """Streams that run side by side until each worker has one, by their pair."""
    streams: dict[tuple[int, int], Stream] = {}
    for number in range(8):
        stream = pair.stream(range(10 * number, 10 * number + 30), num_tokens)
        await stream.reach(1)
        streams.setdefault(pair.workers_of(stream), stream)
        if {decode for _, decode in streams} == {0, 1}:
            return streams
    raise AssertionError("requests do not spread")


def pids(pair: Pair) -> dict[tuple[Role, int], int]:
    """Every worker's process."""
    return {slot: pair.pid(*slot) for slot in pair.slots}


async def hanging(pair: Pair) -> tuple[Stream, int, int]:
    """A request whose first write hangs, and the numbers of its prefill and decode worker."""
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    stream = pair.stream(range(500, 550), 20)
    await until("a write hangs", pair.faults.fired)
    return stream, *pair.workers_of(stream)


async def test_requests_spread_and_are_right(pair: Pair) -> None:
    """Every worker computes some of 16 requests at once, every answer is right, and all pages return."""
    streams = [pair.stream(range(7 * n, 7 * n + 1 + 5 * n), 12, tenant=f"tenant-{n}") for n in range(1, 17)]
    assert {await stream.finish() for stream in streams} == {EndReason.LENGTH}
    assert all(stream.right and len(stream.tokens) == 12 for stream in streams)
    await pair.all_free()
    assert all(pair.life(*slot).beat.counters["passes"] for slot in pair.slots)


async def test_a_prefill_killed_in_a_hand_off_costs_that_hand_off_alone(pair: Pair) -> None:
    """Its request is lost, the other prefill serves on at once, and no page is free before it was reaped."""
    pair.faults.hold(60)
    running = await on_each_pair(pair)
    lost, prefill, decode = await hanging(pair)
    before = pids(pair)
    pair.signal("prefill", signal.SIGKILL, prefill)
    assert (await lost.finish(), lost.tokens) == (EndReason.WORKER_LOST, [])
    other = pair.stream(range(900, 950), 1)
    assert await other.finish() is EndReason.LENGTH
    assert other.right
    pair.faults.let_go()
    assert {await stream.finish() for stream in running.values()} == {EndReason.LENGTH}
    assert all(stream.right for stream in running.values())
    await pair.ready(1, "prefill", prefill)
    await pair.all_free()
    changed = {slot for slot, pid in pids(pair).items() if pid != before[slot]}
    assert changed == {("prefill", prefill)}
    gone = [step.event for step in pair.steps("decode", pair.life("decode", decode).incarnation)]
    assert all(event.reaped for event in gone if isinstance(event, PeerGone))
    await pair.works()


async def test_a_decode_killed_costs_its_own_sequences_alone(pair: Pair) -> None:
    """A sequence on the other decode worker ends right; the killed one's client hears that it was lost."""
    pair.faults.hold(40)
    running = await on_each_pair(pair)
    by_decode = {decode: stream for (_, decode), stream in running.items()}
    restarts = pair.restarts("decode", 0)
    pair.signal("decode", signal.SIGKILL, 0)
    assert await by_decode[0].finish() is EndReason.WORKER_LOST
    assert by_decode[0].right
    pair.faults.let_go()
    assert await by_decode[1].finish() is EndReason.LENGTH
    assert by_decode[1].right
    await pair.ready(restarts + 1, "decode", 0)
    await pair.all_free()
    await pair.works()


async def test_while_one_worker_is_silent_the_others_take_every_request(pair: Pair) -> None:
    """A stopped worker looks alive to the kernel; without its heartbeat nothing is placed on it, and nobody waits."""
    for role in ("prefill", "decode"):
        pair.signal(role, signal.SIGSTOP, 1)
        await until("it is silent", lambda role=role: pair.life(role, 1).state == "silent")  # type: ignore[misc]
        streams = [pair.stream(range(n, n + 40), 8) for n in range(6)]
        assert {await stream.finish() for stream in streams} == {EndReason.LENGTH}
        assert all(stream.right for stream in streams)
        pair.signal(role, signal.SIGCONT, 1)
        await until("it is heard again", lambda role=role: pair.life(role, 1).state == "ready")  # type: ignore[misc]
    await pair.all_free()


async def test_where_any_writer_may_have_done_it_all_are_replaced_one_after_the_other(pair: Pair) -> None:
    """A page that did not match proves that some writer is active, not which: its pages wait for both exits, and
    while one is replaced the other serves."""
    restarts = {number: pair.restarts("prefill", number) for number in (0, 1)}
    pair.faults.arm(Fault("corrupt", "body"))
    faulty = pair.stream(range(500, 660), 20)
    assert (await faulty.finish(), faulty.tokens) == (EndReason.DIGEST_MISMATCH, [])

    def serving() -> list[str]:
        return [life.state for life in pair.supervisor.of("prefill")]

    down = 0
    async with asyncio.timeout(60):
        while any(pair.restarts("prefill", number) == restarts[number] for number in (0, 1)):
            down = max(down, sum(state != "ready" for state in serving()))
            await asyncio.sleep(0.005)
    for number in (0, 1):
        await pair.ready(restarts[number] + 1, "prefill", number)
    assert down == 1
    await pair.all_free()
    assert QUARANTINED not in pair.states("decode", 0) | pair.states("decode", 1)
    await pair.works()
