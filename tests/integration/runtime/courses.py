"""Courses of events with one faulty write, the same for a guarded pair and for one with guards away."""

import signal

from msgspec import Struct

from kvfence.kv.seal import page_digest, read_stamp
from kvfence.protocol.commands import Emit, Move
from kvfence.protocol.events import Event
from kvfence.protocol.messages import EndReason
from kvfence.protocol.transitions import PageMove
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Stream, until

QUARANTINED = "quarantined"


class Course(Struct):
    """What came of it. ``victim``: who must not be hurt; ``faulty``: whose write it was; ``states``: decode's pages
    while the write was under way, its request over; ``fence``: what freed the page at last."""

    victim: Stream
    faulty: Stream
    states: dict[str, int]
    fence: Event | None


async def late_write(pair: Pair) -> Course:
    """Prefill stops in mid-page, its request's deadline passes, a running sequence grows on, and prefill resumes."""
    pair.faults.hold(40)
    victim = pair.stream(range(30), 60)
    await victim.reach(10)
    pair.faults.arm(Fault("stop"))
    faulty = pair.stream(range(500, 550), 20, deadline_s=0.4)
    await until("prefill has stopped in mid-page", pair.faults.fired)
    attempt, page = pair.attempt_of(faulty), pair.granted_pages(faulty)[0]
    assert await faulty.finish() is EndReason.DEADLINE
    states = await pair.next_beat("decode")
    pair.faults.hold(70)  # two pages more, the second of them the torn one if that is free
    await victim.reach(40)
    async with pair.pool() as pool:
        torn = pool.records[page].copy()
        pair.signal("prefill", signal.SIGCONT)
        await until("the late bytes have landed", lambda: (pool.records[page, 32:] != torn[32:]).any())
        await until("and all of them", lambda: read_stamp(pool, page).digest == page_digest(pool, page))
    pair.faults.let_go()
    assert await victim.finish() is EndReason.LENGTH
    await pair.all_free()
    assert not faulty.tokens
    assert not [
        step for step in pair.steps("decode") for c in step.commands if isinstance(c, Emit) and attempt in c.attempts
    ]
    return Course(victim, faulty, states, last_fence(pair, page))


async def misdirected_write(pair: Pair) -> Course:
    """A write for one request lands in the page of a running sequence, in the middle of its pass."""
    pair.faults.hold(104)
    victim = pair.stream(range(100), 30)
    await victim.reach(5)
    page = pair.granted_pages(victim)[2]
    pair.faults.arm(Fault("misdirect", page=page))
    faulty = pair.stream(range(500, 520), 20)
    assert await faulty.finish() is EndReason.STAMP_MISMATCH
    assert not faulty.tokens
    pair.faults.let_go()
    await victim.finish()
    return Course(victim, faulty, await pair.next_beat("decode"), last_fence(pair, page))


async def corrupted_write(pair: Pair, num_tokens: int) -> Course:
    """One byte of one page changes on its way, while another sequence runs."""
    pair.faults.hold(40)
    victim = pair.stream(range(30), 60)
    await victim.reach(10)
    pair.faults.arm(Fault("corrupt", "body"))
    faulty = pair.stream(range(500, 500 + num_tokens), 20)
    await until("a byte is wrong", pair.faults.fired)
    fired = pair.faults.fired()
    page = -1 if fired is None else fired.page
    pair.faults.let_go()
    await faulty.finish()
    assert await victim.finish() is EndReason.LENGTH
    return Course(victim, faulty, await pair.next_beat("decode"), last_fence(pair, page))


async def hanging_write(pair: Pair) -> Course:
    """The write of a cancelled request hangs in mid-page while prefill itself answers, and ends late."""
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    faulty = pair.stream(range(500, 550), 20)
    await until("a write hangs", pair.faults.fired)
    page = pair.granted_pages(faulty)[0]
    await faulty.close()
    await until("the attempt is over", lambda: not pair.node().handoffs)
    states = await pair.next_beat("decode")
    async with pair.pool() as pool:
        torn = pool.records[page].copy()
        pair.faults.let_go()
        await until("the late bytes land", lambda: (pool.records[page, 32:] != torn[32:]).any())
    await pair.all_free()
    return Course(faulty, faulty, states, last_fence(pair, page))


def last_fence(pair: Pair, page: int) -> Event | None:
    """Give the event that freed this page from quarantine last, in this life of decode, its start left out."""
    fences = [
        step.event
        for step in pair.steps("decode")
        for command in step.commands
        if isinstance(command, Move) and command.move is PageMove.FENCE and command.serial and page in command.pages
    ]
    return fences[-1] if fences else None
