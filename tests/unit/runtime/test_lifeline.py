"""The socket between supervisor and worker."""

import asyncio
import os
import socket
import tempfile

import pytest

from kvfence.core.ids import Incarnation
from kvfence.runtime.lifeline import Beat, Broken, Lifeline, Loaded, MeetPeer, Order, PeerDied, PoolOffer, Report

PEER = Incarnation("b" * 32)


def ends() -> tuple[Lifeline[Report], Lifeline[Order]]:
    """Both ends of one lifeline: the supervisor's and the worker's."""
    ours, theirs = socket.socketpair()
    return Lifeline(ours, Report), Lifeline(theirs, Order)  # type: ignore[arg-type]


async def test_frames_arrive_in_order_and_whole() -> None:
    """Many frames sent at once are read one by one."""
    supervisor, worker = ends()
    for count in range(50):
        worker.send(Beat(states={"free": count}))
    worker.send(Broken("gone"))
    got = [(await supervisor.receive())[0] for _ in range(51)]
    assert [beat.states["free"] for beat in got[:50] if isinstance(beat, Beat)] == list(range(50))
    assert got[50] == Broken("gone")
    supervisor.close()
    worker.close()


async def test_a_descriptor_goes_with_its_own_frame() -> None:
    """A descriptor is given with the frame it was sent with, and no other."""
    supervisor, worker = ends()
    with tempfile.TemporaryFile() as file:
        file.write(b"pool")
        file.flush()
        supervisor.send(PeerDied(PEER, reaped=True))
        supervisor.send(MeetPeer(PEER, "decode", writes=False, pool=PoolOffer(1, 4)), file.fileno())
    first, no_fd = await worker.receive()
    second, fd = await worker.receive()
    assert isinstance(first, PeerDied)
    assert no_fd is None
    assert isinstance(second, MeetPeer)
    assert fd is not None
    assert os.pread(fd, 4, 0) == b"pool"
    os.close(fd)
    supervisor.close()
    worker.close()


async def test_the_end_of_the_other_side_is_an_end() -> None:
    """A reader learns at once that the other side is gone."""
    supervisor, worker = ends()
    waiting = asyncio.create_task(supervisor.receive())
    worker.close()
    with pytest.raises(EOFError):
        await asyncio.wait_for(waiting, 5)
    supervisor.close()


async def test_a_full_socket_is_an_error_and_not_a_wait() -> None:
    """Sending to a stopped worker never blocks the supervisor."""
    supervisor, worker = ends()

    def fill() -> None:
        for _ in range(100_000):
            supervisor.send(PeerDied(PEER, reaped=True))

    with pytest.raises(OSError):
        fill()
    supervisor.close()
    worker.close()


def test_loaded_is_the_report_that_may_carry_a_pool() -> None:
    """Decode's pool travels with Loaded; the field names stay as the supervisor reads them."""
    report = Loaded("l", 16, 1024, 10, 512, 0, "llama")
    assert report.num_pages * report.record_bytes == 10240


async def test_a_supervisor_that_does_not_read_gets_smaller_heartbeats() -> None:
    """The worker sees that frames pile up long before the socket is full, and that they were read."""
    supervisor, worker = ends()
    assert not worker.behind
    num_sent = 0
    while not worker.behind:
        worker.send(Broken("x" * 4096))
        num_sent += 1
    assert 4 <= num_sent <= 9
    for _ in range(num_sent):
        await supervisor.receive()
    assert not worker.behind
    supervisor.close()
    worker.close()
