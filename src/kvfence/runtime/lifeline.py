"""The socket between the supervisor and each worker: orders down, readiness and heartbeats up, file descriptors both.

Its end is the death of the other side: a worker whose lifeline closes exits. Not for: protocol messages, which go
from worker to worker over ``wire/control.py``.
"""

import array
import asyncio
import fcntl
import os
import socket
import struct
import termios
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from kvfence.core.errors import KvfenceError
from kvfence.core.ids import Incarnation
from kvfence.core.invariant import InvariantBroken
from kvfence.core.settings import Role, Settings
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Rules
from kvfence.runtime.page_map import PageMap

FRAME_BYTES_MAX = 1 << 20
BEHIND_BYTES = 32 << 10
"""What may lie unread before frames are made smaller: the socket holds about 200 KiB, and a full one is an end."""
_LENGTH = struct.Struct("<I")


class Begin(Struct, frozen=True, tag=True):
    """Supervisor to worker, first: who you are and what to load."""

    role: Role
    incarnation: Incarnation
    control_dir: str
    model_path: str
    settings: Settings
    rules: Rules
    pool_pages: int


class PoolOffer(Struct, frozen=True):
    """A pool that may be written; its descriptor travels with the frame."""

    num_pages: int
    nbytes: int


class Start(Struct, frozen=True, tag=True):
    """Supervisor to worker, once both pools are known: the capacity to serve."""

    capacity: Capacity


class MeetPeer(Struct, frozen=True, tag=True):
    """Supervisor to worker: a peer lives. ``pool``: prefill may write into it (descriptor attached)."""

    peer: Incarnation
    role: str
    writes: bool
    pool: PoolOffer | None = None


class PeerDied(Struct, frozen=True, tag=True):
    """Supervisor to worker: a peer is gone. ``reaped``: its process has been waited for."""

    peer: Incarnation
    reaped: bool


class Loaded(Struct, frozen=True, tag=True):
    """Worker to supervisor: the model is loaded and the pool taken (decode attaches its descriptor)."""

    layout: str
    page_size: int
    record_bytes: int
    num_pages: int
    context_tokens: int
    weight_bytes: int
    family: str


class Beat(Struct, frozen=True, tag=True):
    """Worker to supervisor, every half second: it lives, and how it stands.

    ``states``: pages by state; *cached* are SEALED pages that nobody holds. ``outcomes``: ended hand-offs by outcome
    (decode's alone). ``decisions``: (guard, place, answer, count). ``fences``: pages that only a fence can free, by the
    lives that may still write them, all of which must exit. ``wanted_pages``: what whoever waits first needs.
    ``counters``: passes, pages compared, model errors, frames refused or dropped, traces lost. ``prefixes``: tokens of
    prompts found in shared pages or not, and pages evicted (prefill's alone). ``map``: the pool page by page; none
    where the supervisor is behind with reading.
    """

    states: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    decisions: tuple[tuple[str, str, str, int], ...] = ()
    fences: tuple[tuple[tuple[Incarnation, ...], int], ...] = ()
    wanted_pages: int = 0
    counters: dict[str, int] = {}
    map: PageMap | None = None
    prefixes: dict[str, int] = {}

    @property
    def fence_pages(self) -> int:
        """Pages that only a fence can free."""
        return sum(num_pages for _, num_pages in self.fences)

    def freed_by(self, writer: Incarnation) -> tuple[int, int]:
        """Pages that this life's exit frees alone, and pages that it frees together with others'."""
        alone = sum(num_pages for writers, num_pages in self.fences if writers == (writer,))
        shared = sum(num_pages for writers, num_pages in self.fences if writer in writers)
        return alone, shared


class Broken(Struct, frozen=True, tag=True):
    """Worker to supervisor, last: why it exits, without any request's content."""

    message: str


def describe(error: BaseException) -> str:
    """Say what went wrong; of errors that are not ours the type alone, for their text may hold content."""
    ours = isinstance(error, (KvfenceError, InvariantBroken, OSError))
    return f"{type(error).__name__}: {error}" if ours else type(error).__name__


Order = Begin | Start | MeetPeer | PeerDied
Report = Loaded | Beat | Broken

T = TypeVar("T")


class Lifeline(Generic[T]):
    """One end of a lifeline that receives frames of type ``T``.

    Owner:
        One event loop. Descriptors received belong to the caller, who closes them.
    """

    def __init__(self, sock: socket.socket, receives: type[T]) -> None:
        self._sock = sock
        sock.setblocking(False)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._buffer = bytearray()
        self._fds: list[int] = []

    def send(self, message: Struct, fd: int | None = None) -> None:
        """Send one frame; frames are small and rare, so the socket's buffer holds them.

        Raises:
            BlockingIOError: the other side is so stopped that its buffer is full; nothing was sent.
            OSError: the other side is gone, or its frames are broken.
        """
        body = self._encoder.encode(message)
        frame = _LENGTH.pack(len(body)) + body
        if fd is None:
            sent = self._sock.send(frame)
        else:
            sent = socket.send_fds(self._sock, [frame], [fd])
        if sent != len(frame):
            raise BrokenPipeError("a lifeline frame was cut: the other side does not read")

    @property
    def behind(self) -> bool:
        """Does the other side leave more unread than a few frames?"""
        unread = array.array("i", [0])
        fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, unread)
        return unread[0] > BEHIND_BYTES

    async def receive(self) -> tuple[T, int | None]:
        """Wait for the next frame and the descriptor that came with it.

        Raises:
            EOFError: the other side is gone.
        """
        while True:
            frame = self._next_frame()
            if frame is not None:
                # Descriptors arrive no later than their frame's first byte, one to a frame.
                message = self._decoder.decode(frame)
                wants_fd = getattr(message, "pool", None) is not None or isinstance(message, Loaded)
                return message, self._fds.pop(0) if wants_fd and self._fds else None
            await _readable(self._sock)
            self._read_some()

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > FRAME_BYTES_MAX:
            raise EOFError("a lifeline frame is too large")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _read_some(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(4 * array.array("i").itemsize))
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError("the lifeline broke") from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds += fds
        if not data:
            raise EOFError("the lifeline ended")
        self._buffer += data

    def close(self) -> None:
        """Close this end and descriptors nobody took."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._sock.close()


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock)
