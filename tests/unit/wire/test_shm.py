"""Shared-memory writes inside one process: order, progress, faults injected by the progress callback."""

import platform
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from kvfence.core.errors import TransportError
from kvfence.core.layout import KVLayout, Segment
from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import pack_heads, verify_pages
from kvfence.kv.storage import MemoryFile, PoolBuffer, open_shared, pool_bytes
from kvfence.protocol.transitions import Fence
from kvfence.wire.shm import COPY_BYTES_MAX, Progress, SharedMemoryTransport, record_parts
from tests.pools import DECODE, LAYOUT, PREFILL, batch_of, body_is, fill, tags_of

NUM_PAGES = 6


@dataclass
class Pair:
    """A prefill and a decode pool in memory files."""

    layout: KVLayout = LAYOUT
    files: list[MemoryFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = [open_shared(pool_bytes(self.layout, NUM_PAGES)) for _ in range(2)]
        self.prefill, self.decode = (PoolBuffer(file.buffer, self.layout, NUM_PAGES) for file in self.files)

    def transport(self, on_progress: Progress | None = None) -> SharedMemoryTransport:
        """Connect the two."""
        return SharedMemoryTransport(self.files[0].buffer, self.files[1].buffer, self.layout, DECODE, on_progress)


@pytest.fixture
def pair() -> Pair:
    """Two pools of the small layout."""
    return Pair()


def test_a_written_batch_verifies(pair: Pair) -> None:
    """Every record of the batch arrives whole."""
    tags = tags_of(PREFILL, 5, [0, 1, 2])
    digest = fill(pair.prefill, tags, 11, 0x33)
    pair.transport().write(batch_of([0, 1, 2], [5, 0, 3]))
    report = verify_pages(pair.decode, [5, 0, 3], tags, 11)
    assert report.clean
    assert report.digest == digest
    assert not pair.decode.records[[1, 2, 4]].any()


def test_the_fence_and_the_order_are_stated() -> None:
    """Only the writer's death is a fence; order is promised on x86-64 alone."""
    assert SharedMemoryTransport.fence is Fence.PEER_EXIT
    assert SharedMemoryTransport.lands_in_order == (platform.machine() in {"x86_64", "AMD64"})


def test_the_parts_of_a_record_cover_it_in_order() -> None:
    """Head first, then the body without gaps in bounded copies, then the tail."""
    large = KVLayout(16, (Segment("key", 0, (8, 1024), "float32"),))
    head, *body, tail = record_parts(large)
    assert (head, tail.start) == (slice(0, 32), large.tail_offset)
    assert (body[0].start, body[-1].stop) == (large.body.start, large.body.stop)
    assert all(left.stop == right.start for left, right in pairwise(body))
    assert len(body) == 8
    assert all(part.stop - part.start <= COPY_BYTES_MAX for part in body)


def test_the_head_is_there_before_any_byte_of_the_body(pair: Pair) -> None:
    """At the first progress the head has landed and the body has not: a reader is warned before it can be fooled."""
    tags = tags_of(PREFILL, 5, [0])
    fill(pair.prefill, tags, 4, 0x33)
    seen: list[tuple[int, bool, bool]] = []

    def look(page: int, offset: int) -> None:
        head = bytes(pair.decode.records[page, :32]) == tags[0].pack()
        seen.append((offset, head, bool(pair.decode.body(page).any())))

    pair.transport(look).write(batch_of([0], [4]))
    assert seen == [(32, True, False), (LAYOUT.body.stop, True, True), (LAYOUT.tail_offset + 64, True, True)]


def test_a_byte_corrupted_on_the_way_is_found(pair: Pair) -> None:
    """Guard digest-matches: a flipped byte behind the right stamps fails the digest of its page alone."""
    tags = tags_of(PREFILL, 5, [0, 1])
    fill(pair.prefill, tags, 8, 0x33)

    def corrupt(page: int, offset: int) -> None:
        if page == 3 and offset == LAYOUT.body.stop:
            pair.decode.records[page, LAYOUT.body.start + 7] ^= 1

    pair.transport(corrupt).write(batch_of([0, 1], [4, 3]))
    report = verify_pages(pair.decode, [4, 3], tags, 8)
    assert (report.bad_digest, report.stamps_match) == ((3,), True)


def test_a_misdirected_write_shows_at_both_ends(pair: Pair) -> None:
    """The holder it hit sees it in the next comparison, and the page it missed verifies as bad."""
    victims = tags_of(PREFILL, 3, [1])
    fill(pair.decode, victims, 4, 0x11)
    table = BatchTable(pair.decode)
    table.add("victim", [1], pack_heads(PREFILL, 3, [1]))
    tags = tags_of(PREFILL, 5, [0])
    fill(pair.prefill, tags, 4, 0x33)
    pair.transport().write(batch_of([0], [1]))
    assert table.pages_at(table.compare()) == [1]
    assert verify_pages(pair.decode, [4], tags, 4).bad_head == (4,)


def test_a_writer_that_stops_for_ever_leaves_a_torn_page(pair: Pair) -> None:
    """An error out of the middle of a record leaves head without tail; nothing lands afterwards."""
    fill(pair.decode, tags_of(PREFILL, 2, [4]), 4, 0x11)
    tags = tags_of(PREFILL, 5, [0])
    fill(pair.prefill, tags, 4, 0x33)

    def stop(page: int, offset: int) -> None:
        if offset == 32:
            raise TransportError("stopped", "no")

    with pytest.raises(TransportError):
        pair.transport(stop).write(batch_of([0], [4]))
    assert body_is(pair.decode, 4, 0x11)
    report = verify_pages(pair.decode, [4], tags, 4)
    assert (report.bad_head, report.bad_tail) == ((), (4,))


def test_a_closed_transport_writes_nothing(pair: Pair) -> None:
    """After close every page is outside, so the batch is refused before a byte."""
    transport = pair.transport()
    transport.close()
    with pytest.raises(TransportError) as caught:
        transport.write(batch_of([0], [1]))
    assert caught.value.in_flight == "no"
