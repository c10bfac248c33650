"""The Mooncake transport over a stand-in engine: sessions, what a failure means, and what is never written."""

import os
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from msgspec.structs import replace

from kvfence.core.errors import TransportError
from kvfence.core.ids import Incarnation, SessionId
from kvfence.core.invariant import InvariantBroken
from kvfence.kv.seal import verify_pages
from kvfence.kv.storage import MemoryFile, PoolBuffer, open_shared, pool_bytes
from kvfence.protocol.transitions import Fence
from kvfence.wire.mooncake import CHECK_RECORDS, MooncakeTransport, Receiver, Sender, drain_s
from kvfence.wire.mooncake_engine import EngineSpec
from kvfence.wire.transport import PageBatch
from tests.fake_mooncake import FakeEngine, fake_mooncake
from tests.pools import DECODE, LAYOUT, PREFILL, batch_of, fill, tags_of

NUM_PAGES = 6
SPEC = EngineSpec("127.0.0.1")


class Link:
    """A prefill and a decode pool with an engine each."""

    def __init__(self) -> None:
        nbytes = pool_bytes(LAYOUT, NUM_PAGES + CHECK_RECORDS)
        self.files: list[MemoryFile] = [open_shared(nbytes) for _ in range(2)]
        self.prefill, self.decode = (PoolBuffer(file.buffer, LAYOUT, NUM_PAGES) for file in self.files)
        self.receiver = Receiver(SPEC, self.files[1].fd, nbytes)
        self.sender = Sender(SPEC, self.files[0].buffer)
        self.transport = MooncakeTransport(self.sender, LAYOUT, DECODE)
        self.transport.open_session(self.receiver.opened)

    def batch(self, source: list[int], destination: list[int], session: SessionId | None = None) -> PageBatch:
        """A batch for the current session, or for another."""
        return replace(batch_of(source, destination), session=session or self.receiver.opened.session)

    def close(self) -> None:
        """End both engines."""
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def link() -> Iterator[Link]:
    """Two pools of the small layout."""
    with fake_mooncake():
        made = Link()
        yield made
        made.close()


def test_what_is_proved_and_what_is_not_is_stated() -> None:
    """Only a new session of the receiver is a fence; no order is promised, so the read check is a probe here."""
    assert MooncakeTransport.fence is Fence.NEW_SESSION
    assert MooncakeTransport.lands_in_order is False


def test_a_written_batch_verifies(link: Link) -> None:
    """Every record of the batch arrives whole, and nothing else."""
    tags = tags_of(PREFILL, 5, [0, 1, 2])
    digest = fill(link.prefill, tags, 11, 0x33)
    link.transport.write(link.batch([0, 1, 2], [5, 0, 3]))
    report = verify_pages(link.decode, [5, 0, 3], tags, 11)
    assert report.clean
    assert report.digest == digest
    assert not link.decode.records[[1, 2, 4]].any()


def test_a_batch_for_another_session_is_never_posted(link: Link) -> None:
    """What was granted in a session that is over, or in none that was told, goes nowhere; its source is quiet."""
    old = link.receiver.opened.session
    link.transport.open_session(link.receiver.rebuild())
    fill(link.prefill, tags_of(PREFILL, 5, [0]), 4, 0x33)
    for session in (old, SessionId("never told"), SessionId("")):
        with pytest.raises(TransportError) as error:
            link.transport.write(replace(batch_of([0], [4]), session=session))
        assert error.value.in_flight == "no"
    assert not link.decode.records.any()
    assert link.transport.failures == 0
    link.transport.write(link.batch([0], [4]))
    assert link.decode.records[4].any()


def test_a_session_that_is_over_never_returns(link: Link) -> None:
    """An announcement that comes late, or twice, does not bring an old session back."""
    old = link.receiver.opened
    new = link.receiver.rebuild()
    for opened in (new, old, new, old):
        link.transport.open_session(opened)
    assert link.transport.opened == new
    assert link.transport.is_past(old.session)
    assert not link.transport.is_past(new.session)


def test_a_rebuilt_session_lies_elsewhere(link: Link) -> None:
    """Another id, other ports, another address of the same bytes: an old write finds nobody and no memory."""
    lives = [link.receiver.opened, *(link.receiver.rebuild() for _ in range(3))]
    assert len({opened.session for opened in lives}) == len({opened.port for opened in lives}) == 4
    assert all(left.base != right.base for left, right in pairwise(lives))
    old, new = lives[-2:]
    link.prefill.records[0] = 7
    for opened in (old, replace(new, base=old.base), replace(old, base=new.base)):
        link.transport.opened = opened
        with pytest.raises(TransportError):
            link.transport.write(replace(batch_of([0], [4]), session=opened.session))
    assert not link.decode.records.any()


def test_non_success_leaves_both_sides_unsafe(link: Link) -> None:
    """The engine's one error code says nothing about what still lands or is still read."""
    FakeEngine.status = -1
    try:
        with pytest.raises(TransportError) as error:
            link.transport.write(link.batch([0], [4]))
    finally:
        FakeEngine.status = None
    assert error.value.in_flight == "unknown"
    assert link.transport.failures == 1


def test_a_session_that_does_not_answer_gets_nothing(link: Link) -> None:
    """At first contact the engine would wait a minute for a silent peer; nothing is posted, so nothing is in doubt."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        opened = replace(link.receiver.opened, session=SessionId("silent"), port=silent.getsockname()[1])
        link.transport.open_session(opened)
        start = time.monotonic()
        with pytest.raises(TransportError) as error:
            link.transport.write(link.batch([0], [4], opened.session))
    assert error.value.in_flight == "no"
    assert time.monotonic() - start < 4


def test_pages_outside_and_other_lives_are_refused(link: Link) -> None:
    """The record behind the pool, where links are tried, is no page of it."""
    for batch in (
        link.batch([0], [NUM_PAGES]),
        link.batch([NUM_PAGES], [0]),
        replace(link.batch([0], [0]), decode=Incarnation("f" * 32)),
    ):
        with pytest.raises(TransportError) as error:
            link.transport.write(batch)
        assert error.value.in_flight == "no"


def test_a_batch_is_bounded(link: Link) -> None:
    """Neither our bound nor the engine's own can be passed."""
    bounded = MooncakeTransport(link.sender, LAYOUT, DECODE, batch_pages_max=1)
    bounded.open_session(link.receiver.opened)
    with pytest.raises(InvariantBroken):
        bounded.write(link.batch([0, 1], [0, 1]))
    with pytest.raises(InvariantBroken):
        MooncakeTransport(link.sender, LAYOUT, DECODE, batch_pages_max=1025)


def test_a_link_is_tried_behind_the_pool(link: Link) -> None:
    """The pattern comes back, no page is touched, and a peer that is gone is noticed."""
    assert link.transport.check_link(1)
    assert not link.decode.records.any()
    assert not link.prefill.records.any()
    gone = link.receiver.opened
    link.receiver.rebuild()
    assert link.transport.opened == gone
    assert not link.transport.check_link(2)
    assert not MooncakeTransport(link.sender, LAYOUT, DECODE).check_link(3)


def test_the_drain_time_is_a_sum() -> None:
    """Bytes at the rate, and the time-out on top: 24 MB at 600 MB/s are known after 5.04 s."""
    assert drain_s(24_000_000, 600e6) == pytest.approx(5.04)


def test_the_engine_is_told_its_time_out(link: Link) -> None:
    """Mooncake's own default would keep a request in doubt for half a minute."""
    assert os.environ["MC_TRANSFER_TIMEOUT"] == "5"
