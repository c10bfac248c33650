"""Control messages between processes of one host: ZeroMQ over ipc sockets in a private directory.

Every process listens on one socket whose address holds its incarnation, so that frames to a dead worker are
never received by its successor. Sending never waits: a full or absent peer is a dropped frame, counted, and the
protocol resends. Frames are copied on sending, because a frame sent without a copy has been seen to deliver
what its buffer held later.

Not for: what frames hold (``codec.py``) or pages (``transport.py``).
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

import zmq
import zmq.asyncio

from kvfence.core.errors import SettingsError, TransportError
from kvfence.core.ids import Incarnation
from kvfence.wire.codec import FRAME_BYTES_MAX

ADDRESS_BYTES_MAX = 107
"""Longest path of a Unix socket: 108 bytes with its terminator."""

QUEUE_FRAMES_MAX = 1024
"""Frames queued to one peer and from all of them; most frames are below 1 KB, so about 1 MB a queue."""

PEERS_MAX = 64
"""Peers with an open sending socket; beyond it the one unused longest is closed."""


def make_private_directory(parent: str | None = None) -> Path:
    """Make a directory that only this user can enter, for the sockets of one deployment; the maker removes it.

    Those whose maker was killed before it could are removed first: their lock is nobody's any more.
    """
    folder = Path(parent or tempfile.gettempdir())
    for lock in folder.glob("kvfence-*/lock"):
        if _is_abandoned(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix="kvfence-", dir=folder))
    held = os.open(made / "lock", os.O_CREAT | os.O_RDWR, 0o600)  # held for this process's life
    fcntl.flock(held, fcntl.LOCK_EX)
    return made


def _is_abandoned(lock: Path) -> bool:
    try:
        if lock.parent.lstat().st_uid != os.getuid():
            return False
        held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def require_private(directory: Path) -> None:
    """Refuse a directory that others can enter: whoever can, can speak to our workers.

    Raises:
        SettingsError: it is missing, another's, or open to others.
    """
    try:
        status = directory.lstat()
    except OSError as error:
        raise SettingsError([f"control directory {directory}: {error.strerror}"]) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SettingsError([f"control directory {directory} must be a directory of this user with mode 0700"])


class ControlSocket:
    """One process's end of all control messages: receives from anyone, sends to any incarnation.

    Owner:
        One event loop; ``send`` is called from its thread.
    Units:
        dropped: frames that could not be queued, since the start.
    """

    def __init__(self, directory: Path, incarnation: Incarnation, queue_frames_max: int = QUEUE_FRAMES_MAX) -> None:
        require_private(directory)
        self.incarnation = incarnation
        self.dropped = 0
        self._directory = directory
        self._queue_frames_max = queue_frames_max
        self._peers: dict[Incarnation, zmq.Socket[bytes]] = {}
        self._path = _socket_path(directory, incarnation)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incoming = zmq.asyncio.Context.shadow(self._context).socket(zmq.PULL)
        self._incoming.setsockopt(zmq.RCVHWM, queue_frames_max)
        self._incoming.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        try:
            self._incoming.bind(f"ipc://{self._path}")
        except zmq.ZMQError as error:
            self._incoming.close(linger=0)
            self._context.term()
            raise TransportError(f"cannot listen on {self._path}: {error.strerror}", "no") from error

    def send(self, to: Incarnation, frame: bytes) -> bool:
        """Queue a frame to a peer without waiting and say whether it was; delivery is never promised."""
        try:
            self._peer(to).send(frame, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            self.dropped += 1
            return False
        return True

    async def receive(self) -> bytes:
        """Wait for the next frame, from anyone."""
        frame: bytes = await self._incoming.recv()
        return frame

    def forget(self, peer: Incarnation) -> None:
        """Drop what is queued to a peer that is gone, and its socket."""
        if (socket := self._peers.pop(peer, None)) is not None:
            socket.close(linger=0)

    def close(self) -> None:
        """Drop what is queued and stop listening; call it after the task that receives has ended."""
        for peer in list(self._peers):
            self.forget(peer)
        self._incoming.close(linger=0)
        self._context.term()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _peer(self, to: Incarnation) -> "zmq.Socket[bytes]":
        socket = self._peers.pop(to, None)
        if socket is None:
            path = _socket_path(self._directory, to)
            if len(self._peers) >= PEERS_MAX:
                self.forget(next(iter(self._peers)))
            socket = self._context.socket(zmq.PUSH)
            socket.setsockopt(zmq.SNDHWM, self._queue_frames_max)
            socket.setsockopt(zmq.RECONNECT_IVL, 10)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
            socket.connect(f"ipc://{path}")
        self._peers[to] = socket  # last in order: used most recently
        return socket


def _socket_path(directory: Path, incarnation: Incarnation) -> Path:
    path = directory / f"{incarnation}.ipc"
    if (length := len(os.fsencode(path))) > ADDRESS_BYTES_MAX:
        raise SettingsError(
            [
                f"control socket {path} is {length} bytes long, sockets allow {ADDRESS_BYTES_MAX}: "
                f"use a directory of at most {ADDRESS_BYTES_MAX - len(incarnation) - 5} bytes, for example by TMPDIR"
            ]
        )
    return path
