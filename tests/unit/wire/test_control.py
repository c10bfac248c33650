"""Control messages: addressed to one life of a process, never waiting, in a directory of our own."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfence.core.errors import SettingsError, TransportError
from kvfence.core.ids import Incarnation, new_incarnation
from kvfence.wire import control
from kvfence.wire.control import ControlSocket, make_private_directory

DEADLINE_S = 10.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private directory that is empty again at the end."""
    made = make_private_directory()
    yield made
    assert os.listdir(made) == ["lock"]
    shutil.rmtree(made)


async def heard(socket: ControlSocket) -> bytes:
    """Wait for one frame, bounded."""
    return await asyncio.wait_for(socket.receive(), DEADLINE_S)


async def test_frames_reach_the_process_they_name(directory: Path) -> None:
    """Two peers, each hears what was sent to it and in order."""
    one, two, three = (ControlSocket(directory, new_incarnation()) for _ in range(3))
    for frame in (b"first", b"second"):
        assert one.send(two.incarnation, frame)
    assert one.send(three.incarnation, b"other")
    assert [await heard(two), await heard(two), await heard(three)] == [b"first", b"second", b"other"]
    for socket in (one, two, three):
        socket.close()


async def test_a_successor_hears_nothing_meant_for_the_dead(directory: Path) -> None:
    """Frames queued for a former life are not delivered to the next one: its address is another."""
    gateway = ControlSocket(directory, new_incarnation())
    dead, successor = new_incarnation(), ControlSocket(directory, new_incarnation())
    assert gateway.send(dead, b"old")
    assert gateway.send(successor.incarnation, b"new")
    assert await heard(successor) == b"new"
    gateway.close()
    successor.close()


async def test_a_peer_that_starts_later_hears_what_was_queued(directory: Path) -> None:
    """Sending before the peer listens is not an error and not lost while the queue has room."""
    early, late = ControlSocket(directory, new_incarnation()), new_incarnation()
    assert early.send(late, b"hello")
    socket = ControlSocket(directory, late)
    assert await heard(socket) == b"hello"
    early.close()
    socket.close()


def test_sending_never_waits(directory: Path) -> None:
    """To a peer that is not there, frames beyond the queue are dropped at once and counted."""
    socket = ControlSocket(directory, new_incarnation(), queue_frames_max=8)
    absent = new_incarnation()
    began = time.monotonic()
    queued = sum(socket.send(absent, b"frame") for _ in range(50))
    assert time.monotonic() - began < DEADLINE_S
    assert (queued, socket.dropped) == (8, 42)
    socket.close()


async def test_a_frame_is_what_it_was_when_it_was_sent(directory: Path) -> None:
    """Bytes are copied on sending: changing the buffer afterwards changes nothing on the way."""
    sender, receiver = ControlSocket(directory, new_incarnation()), ControlSocket(directory, new_incarnation())
    buffer = bytearray(b"a" * 100_000)
    assert sender.send(receiver.incarnation, memoryview(buffer))  # type: ignore[arg-type]
    buffer[:] = b"z" * len(buffer)
    assert await heard(receiver) == b"a" * 100_000
    sender.close()
    receiver.close()


def test_a_forgotten_peer_keeps_no_queue(directory: Path) -> None:
    """Forgetting a peer drops its frames; a later send starts afresh."""
    socket = ControlSocket(directory, new_incarnation(), queue_frames_max=1)
    gone = new_incarnation()
    assert socket.send(gone, b"x")
    assert not socket.send(gone, b"x")
    socket.forget(gone)
    assert socket.send(gone, b"x")
    socket.close()


def test_peers_are_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the peer unused longest is forgotten."""
    monkeypatch.setattr(control, "PEERS_MAX", 2)
    socket = ControlSocket(directory, new_incarnation())
    first, second, third = (new_incarnation() for _ in range(3))
    for peer in (first, second, first, third):
        socket.send(peer, b"x")
    assert set(socket._peers) == {first, third}
    socket.close()


def test_a_long_directory_is_refused_with_the_sum(tmp_path: Path) -> None:
    """A socket's path has a limit; the error says how long a directory may be."""
    long = tmp_path / ("d" * 90)
    long.mkdir(mode=0o700)
    with pytest.raises(SettingsError, match=r"sockets allow 107.*at most 70 bytes"):
        ControlSocket(long, new_incarnation())


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    """Whoever can enter the directory can speak to the workers: it must be 0700, ours, and no link."""
    open_to_all, link = tmp_path / "open", tmp_path / "link"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    private = make_private_directory(str(tmp_path))
    link.symlink_to(private)
    for directory in (open_to_all, link, tmp_path / "absent"):
        with pytest.raises(SettingsError, match="control directory"):
            ControlSocket(directory, new_incarnation())


def test_a_name_that_is_no_file_cannot_be_listened_on(directory: Path) -> None:
    """Failure to listen is an error that names the path."""
    with pytest.raises(TransportError, match="cannot listen"):
        ControlSocket(directory, Incarnation("absent/" + "0" * 10))


def test_a_killed_maker_s_directory_is_removed_by_the_next(tmp_path: Path) -> None:
    """A directory whose lock nobody holds goes; one whose maker lives stays."""
    ours = make_private_directory(str(tmp_path))
    code = f"from kvfence.wire.control import make_private_directory as make; print(make({str(tmp_path)!r}))"
    made_there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    left = Path(made_there.strip())
    assert left.is_dir()
    made = make_private_directory(str(tmp_path))
    assert not left.exists()
    assert ours.is_dir()
    assert made.is_dir()
