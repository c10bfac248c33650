"""In-process writes: whole or not at all at receipt, and reading their source only as they land."""

import pytest

from kvfence.core.errors import TransportError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.invariant import InvariantBroken
from kvfence.kv.seal import verify_pages
from kvfence.kv.storage import PoolBuffer, pool_bytes
from kvfence.protocol.transitions import Fence
from kvfence.wire.memory import Accept, MemoryTransport
from tests.pools import ATTEMPT, DECODE, LAYOUT, PREFILL, batch_of, body_is, fill, tags_of

NUM_PAGES = 6


def pair(accept: Accept = lambda *_: True) -> tuple[PoolBuffer, PoolBuffer, MemoryTransport]:
    """Make a prefill and a decode pool, and the transport between them."""
    source, destination = (bytearray(pool_bytes(LAYOUT, NUM_PAGES)) for _ in range(2))
    transport = MemoryTransport(source, destination, LAYOUT, DECODE, accept)
    return PoolBuffer(source, LAYOUT, NUM_PAGES), PoolBuffer(destination, LAYOUT, NUM_PAGES), transport


def test_a_written_batch_verifies() -> None:
    """Records land whole, under the origin they were sealed with."""
    prefill, decode, transport = pair()
    tags = tags_of(PREFILL, 5, [0, 1])
    digest = fill(prefill, tags, 7, 0x33)
    transport.write(batch_of([0, 1], [4, 2]))
    report = verify_pages(decode, [4, 2], tags, 7)
    assert report.clean
    assert report.digest == digest
    assert transport.fence is Fence.AT_RECEIPT


def test_the_receiver_is_asked_for_every_page() -> None:
    """A refused page lands no byte; accepted ones of the same batch do; nothing is in flight afterwards."""
    asked: list[tuple[int, AttemptId, Incarnation]] = []

    def accept(page: int, attempt: AttemptId, decode: Incarnation) -> bool:
        asked.append((page, attempt, decode))
        return page != 4

    prefill, decode, transport = pair(accept)
    fill(prefill, tags_of(PREFILL, 5, [0, 1]), 8, 0x33)
    with pytest.raises(TransportError, match="refused 1 of 2") as caught:
        transport.write(batch_of([0, 1], [4, 2]))
    assert caught.value.in_flight == "no"
    assert asked == [(4, ATTEMPT, DECODE), (2, ATTEMPT, DECODE)]
    assert not decode.records[4].any()
    assert body_is(decode, 2, 0x33)
    assert not transport.pending


def test_a_late_delivery_asks_again() -> None:
    """What was posted before a revoke and arrives after it is refused at receipt: no stray byte lands."""
    granted = {4}
    prefill, decode, transport = pair(lambda page, *_: page in granted)
    fill(prefill, tags_of(PREFILL, 5, [0]), 4, 0x33)
    (write,) = transport.post(batch_of([0], [4]))
    granted.clear()
    assert not transport.deliver(write)
    assert not decode.records.any()


def test_a_write_reads_its_source_only_as_it_lands() -> None:
    """Guard hold-source: a source page re-used before its write landed delivers the new bytes."""
    prefill, decode, transport = pair()
    tags = tags_of(PREFILL, 5, [0])
    fill(prefill, tags, 4, 0x33)
    (write,) = transport.post(batch_of([0], [4]))
    fill(prefill, tags_of(PREFILL, 6, [0]), 4, 0x44)
    assert transport.deliver(write)
    assert verify_pages(decode, [4], tags, 4).bad_head == (4,)


@pytest.mark.parametrize(("source", "destination"), [([6], [0]), ([0], [6]), ([-1], [0])])
def test_pages_outside_either_pool_are_refused_before_any_byte(source: list[int], destination: list[int]) -> None:
    """The error says that nothing is in flight."""
    prefill, decode, transport = pair()
    fill(prefill, tags_of(PREFILL, 5, [0]), 4, 0x33)
    with pytest.raises(TransportError, match="outside") as caught:
        transport.write(batch_of(source, destination))
    assert caught.value.in_flight == "no"
    assert not decode.records.any()


def test_another_life_of_decode_is_not_written_to() -> None:
    """A batch for an incarnation that this transport does not reach is refused."""
    _, _, transport = pair()
    with pytest.raises(TransportError, match="another life"):
        transport.write(batch_of([0], [1], Incarnation("f" * 32)))


def test_a_batch_is_bounded() -> None:
    """Guard batch-bound: more pages than the limit, none, or unequal lists are bugs here."""
    _, _, transport = pair()
    for source, destination in (([0] * 65, [1] * 65), ([], []), ([0, 1], [2])):
        with pytest.raises(InvariantBroken):
            transport.write(batch_of(source, destination))
