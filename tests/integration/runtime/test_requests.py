"""Requests through a running pair: right answers, cancelled clients, bounds, preemption."""

import asyncio
import signal

import pytest

from kvfence.core.limits import Limits
from kvfence.protocol.commands import Send
from kvfence.protocol.messages import Cancel, EndReason
from tests.integration.runtime.arithmetic import CONTEXT
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
# One test says a word for the gateway, so that the traces show more than its steps.
SCENE = Scene(limits=Limits(queue_tenant_max=6), trace=False)


async def test_answers_are_right_side_by_side(pair: Pair) -> None:
    """16 requests of mixed length at once get the tokens that each gets alone, and all pages return."""
    streams = [pair.stream(range(7 * n, 7 * n + 1 + 5 * n), 12, tenant=f"tenant-{n}") for n in range(1, 17)]
    assert {await stream.finish() for stream in streams} == {EndReason.LENGTH}
    assert all(stream.right and len(stream.tokens) == 12 for stream in streams)
    await pair.all_free()


async def test_growth_beyond_the_pool_preempts_and_changes_no_token(pair: Pair) -> None:
    """Sequences that together outgrow the pool are preempted, go on, and get the tokens that each gets alone."""
    before = pair.life("decode").beat.outcomes.get("preempted", 0)
    streams = [pair.stream(range(100 * n, 100 * n + 30), 90, tenant=f"tenant-{n}") for n in range(10)]
    assert {await stream.finish() for stream in streams} == {EndReason.LENGTH}
    assert all(stream.right and len(stream.tokens) == 90 for stream in streams)
    await pair.all_free()
    assert pair.life("decode").beat.outcomes["preempted"] > before


async def test_an_end_that_is_told_again_is_counted_once(pair: Pair) -> None:
    """Hand-offs are counted by outcome, however often a message about one is repeated."""
    pair.faults.hold(25)
    stream = pair.stream(range(20), 8)
    await stream.reach(3)
    attempt, decode = pair.attempt_of(stream), pair.life("decode").incarnation
    before = sum(pair.life("decode").beat.outcomes.values())
    pair.faults.let_go()
    assert await stream.finish() is EndReason.LENGTH
    for _ in range(3):
        pair.supervisor.dispatcher._execute(Send(decode, Cancel(attempt)))
    await pair.works()
    await pair.next_beat("decode")
    assert sum(pair.life("decode").beat.outcomes.values()) == before + 2


async def test_what_does_not_fit_is_refused_with_its_arithmetic(pair: Pair) -> None:
    """A prompt beyond the context is refused for good, with the sum that fails, and touches no page."""
    stream = pair.stream(range(CONTEXT), 1)
    assert await stream.finish() is EndReason.DOES_NOT_FIT
    assert stream.end is not None
    assert [(fit.resource, fit.holds) for fit in stream.end.sums if not fit.holds] == [("context tokens", False)]
    assert not pair.node().handoffs


async def test_a_client_that_leaves_before_dispatch_leaves_nothing(pair: Pair) -> None:
    """An offer that waits for pages is cancelled at once."""
    pair.faults.hold(481)
    large = pair.stream(range(480), 3)
    await large.reach(2)
    waiting = pair.stream(range(100), 3)
    await until("the offer waits", lambda: len(pair.node().handoffs) == 2)
    await waiting.close()
    await until("the offer is forgotten", lambda: len(pair.node().handoffs) == 1)
    pair.faults.let_go()
    assert await large.finish() is EndReason.LENGTH
    assert large.right
    await pair.all_free()


async def test_a_client_that_leaves_during_a_transfer_frees_no_page_under_it(pair: Pair) -> None:
    """The pages are quarantined until the write has ended; then they return on both sides."""
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    stream = pair.stream(range(100), 3)
    await until("a write hangs", pair.faults.fired)
    await stream.close()
    await until("the attempt is over", lambda: not pair.node().handoffs)
    assert await pair.next_beat("decode") == {"free": SCENE.decode_pages - 7, "quarantined": 7}
    assert (await pair.next_beat("prefill"))["sealed"] == 7
    assert pair.num_free("prefill") == SCENE.prefill_pages - 7
    pair.faults.let_go()
    await pair.all_free()


async def test_a_client_that_leaves_while_tokens_come_frees_its_pages(pair: Pair) -> None:
    """A running sequence ends with its pass."""
    pair.faults.hold(110)
    stream = pair.stream(range(100), 50)
    await stream.reach(10)
    await stream.close()
    pair.faults.let_go()
    await pair.all_free()
    assert stream.right
    assert not pair.node().handoffs


async def test_a_deadline_ends_a_request_that_waits(pair: Pair) -> None:
    """Time over while another holds the pages: the client hears so and the other goes on."""
    pair.faults.hold(481)
    large = pair.stream(range(480), 3)
    await large.reach(2)
    waiting = pair.stream(range(100), 3, deadline_s=0.3)
    assert await waiting.finish() is EndReason.DEADLINE
    pair.faults.let_go()
    assert await large.finish() is EndReason.LENGTH
    assert large.right
    await pair.all_free()


async def test_unsettled_cancelled_requests_count_against_their_tenant(pair: Pair) -> None:
    """A tenant that cancels and asks again while prefill does not answer is refused at its bound; others are not."""
    pair.faults.arm(Fault("stop"))
    streams = [pair.stream(range(20), 3, tenant="hasty") for _ in range(6)]
    await until("a write has stopped", pair.faults.fired)
    await until("all are dispatched", lambda: all(h.grant is not None for h in pair.node().handoffs.values()))
    await asyncio.gather(*(stream.close() for stream in streams))
    refused = pair.stream(range(20), 3, tenant="hasty")
    assert await refused.finish() is EndReason.QUEUE_FULL
    assert refused.end is not None
    assert refused.end.retry_after_s > 0
    other = pair.stream(range(20), 3, tenant="patient")
    pair.signal("prefill", signal.SIGCONT)
    assert await other.finish() is EndReason.LENGTH
    assert other.right
    await pair.all_free()
    assert await pair.stream(range(20), 3, tenant="hasty").finish() is EndReason.LENGTH
