"""What the real engine does after "failed", and what ends it. The facts that the fence of this transport stands on.

Each test that shows bytes kept away stands beside one that shows them coming without the fence.
"""

import signal

import numpy as np
import pytest
from msgspec.structs import replace

from kvfence.wire.frames import SessionOpened
from tests.integration.mooncake.ends import LAYOUT, NUM_PAGES, End, settled, two_ends, until

pytestmark = pytest.mark.mooncake

MINE, REUSED, NEXT = 0x11, 0x22, 0x33
"""Bytes of the prompt that was sent, of whoever has its source afterwards, and of whoever has its destination."""


def meet(receiver: End, sender: End, opened: SessionOpened) -> None:
    """Write one page, so that the engines know each other, and take it away again."""
    assert sender.write(opened, 1).success
    receiver.pages[:] = 0


def fill(end: End, value: int) -> None:
    """Fill every page."""
    end.pages[:] = value


def test_a_batch_that_succeeded_is_quiet() -> None:
    """Success was acknowledged behind the last byte: all of it is there, and nothing comes after."""
    with two_ends() as (receiver, sender, opened):
        fill(sender, MINE)
        assert sender.write(opened).success
        assert (receiver.pages == MINE).all()
        fill(sender, REUSED)
        receiver.pages[:] = 0
        assert settled(receiver.pages) == 0


@pytest.mark.parametrize("num_pages", [1, 64])
def test_after_a_time_out_the_bytes_land_from_a_source_used_anew(num_pages: int) -> None:
    """The receiver stalls, the call gives up after its time-out, the receiver goes on: the batch lands, late.

    One page shows that success is no matter of what buffers hold: it is never said before the receiver's word.
    """
    with two_ends() as (receiver, sender, opened):
        meet(receiver, sender, opened)
        fill(sender, MINE)
        receiver.signal(signal.SIGSTOP)
        wrote = sender.write(opened, num_pages)
        assert (wrote.success, wrote.in_flight) == (False, "unknown")
        assert 4.9 < wrote.took_s < 6.5
        fill(sender, REUSED)  # what prefill would do, were the source free after a time-out
        assert not receiver.pages.any()
        receiver.signal(signal.SIGCONT)
        assert until(lambda: (receiver.pages[:num_pages, -1] != 0).all())
        reused = int((receiver.pages[:num_pages] == REUSED).sum())
        assert num_pages == 1 or reused > receiver.pages.size // 2, reused


def test_the_sender_s_death_is_no_fence() -> None:
    """What had reached the receiver's host lands after the sending process is gone and reaped."""
    with two_ends() as (receiver, sender, opened):
        meet(receiver, sender, opened)
        fill(sender, MINE)
        receiver.signal(signal.SIGSTOP)
        sender.begin(opened)
        assert not until(lambda: receiver.pages.any(), 0.5)
        sender.signal(signal.SIGKILL)
        sender.process.wait()
        receiver.signal(signal.SIGCONT)
        assert until(lambda: receiver.pages.any())


def test_a_receiver_that_is_silent_at_first_contact_gets_nothing() -> None:
    """The engine would wait for it for a minute; it is asked first, and after two seconds nothing has been posted."""
    with two_ends() as (receiver, sender, opened):
        fill(sender, MINE)
        receiver.signal(signal.SIGSTOP)
        wrote = sender.write(opened)
        assert (wrote.success, wrote.in_flight) == (False, "no")
        assert wrote.took_s < 3.0
        receiver.signal(signal.SIGCONT)
        assert settled(receiver.pages) == 0


def stop_in_mid_transfer(receiver: End, sender: End, opened: SessionOpened) -> None:
    """Stop the sender while its bytes land."""
    meet(receiver, sender, opened)
    for _ in range(20):
        fill(sender, MINE)
        receiver.pages[:] = 0
        sender.begin(opened)
        assert until(lambda: receiver.pages[0].any())
        sender.signal(signal.SIGSTOP)
        if not receiver.pages[-1].any():
            return
        sender.signal(signal.SIGCONT)
        sender.wrote()
    raise AssertionError("every transfer was over before it could be stopped")


def test_release_by_time_out_would_leak() -> None:
    """The guard away: pages given on while their writer is merely silent are overwritten when it wakes."""
    with two_ends() as (receiver, sender, opened):
        stop_in_mid_transfer(receiver, sender, opened)
        receiver.pages[:] = NEXT  # released and granted to the next
        sender.signal(signal.SIGCONT)
        sender.wrote()
        assert (receiver.pages == MINE).sum() > 0


def test_after_a_new_session_no_old_byte_lands() -> None:
    """The guard on: the same writer wakes after the session was rebuilt, fails, and not one byte is its own."""
    with two_ends() as (receiver, sender, opened):
        stop_in_mid_transfer(receiver, sender, opened)
        new = receiver.rebuild()
        receiver.pages[:] = NEXT
        sender.signal(signal.SIGCONT)
        assert not sender.wrote().success
        assert settled(receiver.pages ^ NEXT) == 0
        assert (receiver.pages == NEXT).all()
        fill(sender, REUSED)
        assert sender.write(new).success
        assert (receiver.pages == REUSED).all()


def test_a_batch_to_a_session_that_is_over_fails_at_once() -> None:
    """A grant of the old session that arrives late is no danger: nothing lands, and nobody waits for a time-out."""
    with two_ends() as (receiver, sender, opened):
        receiver.rebuild()
        fill(sender, MINE)
        wrote = sender.write(opened)
        assert not wrote.success
        assert wrote.took_s < 2.0
        assert settled(receiver.pages) == 0


def test_a_batch_is_not_atomic() -> None:
    """One page that is refused fails the batch, and others of it have landed: all of them are unsafe."""
    with two_ends() as (receiver, sender, opened):
        fill(sender, MINE)
        shifted = replace(opened, base=opened.base + 2 * LAYOUT.record_bytes)  # the last page lies behind the memory
        assert not sender.write(shifted).success
        assert 0 < np.count_nonzero(receiver.records) <= (NUM_PAGES - 1) * LAYOUT.record_bytes
