"""Faulty page writes against a guarded pair: nobody is hurt, and no page is free before its writer is quiet."""

import signal

import pytest

from kvfence.protocol.events import PeerGone, Received
from kvfence.protocol.messages import Drained, EndReason
from tests.integration.runtime import courses
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCENE = Scene(heartbeat_timeout_s=6.0)


async def recycled(pair: Pair) -> None:
    """Kill prefill, if the supervisor has not, and wait for its successor."""
    restarts = pair.restarts("prefill")
    pair.signal("prefill", signal.SIGKILL)
    await pair.ready(restarts + 1, "prefill")


async def test_a_write_stopped_in_mid_page_lands_late_and_hurts_nobody(pair: Pair) -> None:
    """The late bytes land for real, in quarantine; the pages are free once prefill has said that it is drained."""
    course = await courses.late_write(pair)
    assert course.victim.right
    assert course.states[courses.QUARANTINED] == 4
    assert isinstance(course.fence, Received)
    assert isinstance(course.fence.envelope.message, Drained)
    await pair.works()


async def test_pages_of_a_hanging_write_wait_for_its_end(pair: Pair) -> None:
    """Prefill answers an abort only when its last write has ended."""
    course = await courses.hanging_write(pair)
    assert course.states[courses.QUARANTINED] == 4
    assert isinstance(course.fence, Received)
    assert isinstance(course.fence.envelope.message, Drained)
    await pair.works()


async def test_a_corrupted_write_is_never_adopted(pair: Pair) -> None:
    """No token of it leaves, and its pages wait for the death of the writer although that says drained."""
    course = await courses.corrupted_write(pair, 50)
    assert course.victim.right
    assert (await course.faulty.finish(), course.faulty.tokens) == (EndReason.DIGEST_MISMATCH, [])
    await pair.works()
    assert (await pair.next_beat("decode"))[courses.QUARANTINED] == 4
    await recycled(pair)
    await pair.all_free()
    await pair.works()


async def test_a_pool_short_of_pages_has_its_writer_replaced(pair: Pair) -> None:
    """Where more than a quarter of the pages waits for prefill's death alone, the supervisor does not wait."""
    restarts = pair.restarts("prefill")
    course = await courses.corrupted_write(pair, 160)
    assert course.victim.right
    await pair.ready(restarts + 1, "prefill")
    await pair.all_free()
    await pair.works()


async def test_a_request_that_needs_waiting_pages_has_the_writer_replaced(pair: Pair) -> None:
    """Few pages wait for prefill's death, but the next in line cannot do without them: prefill does not live on."""
    restarts = pair.restarts("prefill")
    await courses.corrupted_write(pair, 50)
    assert (await pair.next_beat("decode"))[courses.QUARANTINED] == 4
    assert pair.restarts("prefill") == restarts
    whole_pool = pair.stream(range(480), 3)
    assert await whole_pool.finish() is EndReason.WORKER_LOST
    await pair.ready(restarts + 1, "prefill")
    again = pair.stream(range(480), 3)
    assert await again.finish() is EndReason.LENGTH
    assert again.right
    await pair.all_free()


async def test_a_misdirected_write_ends_the_sequence_it_hits(pair: Pair) -> None:
    """No token of that pass leaves; the page is never free while a writer lives that may have done it."""
    bystander = pair.stream(range(200, 230), 70)
    course = await courses.misdirected_write(pair)
    assert await course.victim.finish() is EndReason.STAMP_MISMATCH
    assert course.victim.right
    assert len(course.victim.tokens) == 5
    assert await bystander.finish() is EndReason.LENGTH
    assert bystander.right
    await pair.works()
    assert (await pair.next_beat("decode"))[courses.QUARANTINED] == 6 + 2  # the victim's lot and the other's
    restarts = pair.restarts("prefill")
    await recycled(pair)
    await pair.all_free()
    assert pair.restarts("prefill") == restarts + 1
    peers = [step.event for step in pair.steps("decode") if isinstance(step.event, PeerGone)]
    assert all(event.reaped for event in peers)
    await pair.works()


async def test_a_write_torn_for_ever_costs_its_own_request_alone(pair: Pair) -> None:
    """Running sequences finish right, new requests are turned away, prefill is killed, reaped and replaced."""
    restarts = pair.restarts("prefill")
    pair.faults.hold(40)
    running = pair.stream(range(30), 60)
    await running.reach(10)
    pair.faults.arm(Fault("stop", "body"))
    torn = pair.stream(range(500, 550), 20)
    await until("prefill has stopped in mid-page", pair.faults.fired)
    pages = pair.granted_pages(torn)
    pair.faults.let_go()
    assert await running.finish() is EndReason.LENGTH
    assert running.right
    states = {state.role: state for state in pair.supervisor.dispatcher.workers()}
    await until("prefill is silent", lambda: any(w.state == "silent" for w in pair.supervisor.dispatcher.workers()))
    turned_away = pair.stream(range(20), 3)
    assert await turned_away.finish() is EndReason.NO_WORKER
    assert turned_away.end is not None
    assert turned_away.end.retry_after_s > 0
    assert (await torn.finish(), torn.tokens) == (EndReason.WORKER_LOST, [])
    await pair.ready(restarts + 1, "prefill")
    await pair.all_free()
    fence = courses.last_fence(pair, pages[0])
    assert isinstance(fence, PeerGone)
    assert fence.reaped
    assert fence.peer.startswith(states["prefill"].incarnation)
    await pair.works()
