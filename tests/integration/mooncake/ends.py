"""One end of a Mooncake transfer in a process of its own, so that it can be stopped and killed; and how tests drive it.

``python -m tests.integration.mooncake.ends receiver|sender FD NBYTES``: a line of JSON in, a line of JSON out. The
memory is a file that the test has mapped, too: it sees what lands while the process is stopped.
"""

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvfence.core.errors import TransportError
from kvfence.core.ids import AttemptId, BatchId, Incarnation
from kvfence.core.layout import KVLayout, Segment
from kvfence.wire.frames import SessionOpened
from kvfence.wire.mooncake import CHECK_RECORDS, MooncakeTransport, Receiver, Sender
from kvfence.wire.mooncake_engine import EngineSpec
from kvfence.wire.transport import PageBatch

ROOT = Path(__file__).parents[3]
SPEC = EngineSpec("127.0.0.1")
DECODE = Incarnation("d" * 32)
GATEWAY = Incarnation("e" * 32)

LAYOUT = KVLayout(16, tuple(Segment(name, 0, (4096,), "float32") for name in ("a", "b", "c", "d")))
"""Records of a MiB: 64 of them are far more than the buffers of a connection hold."""
NUM_PAGES = 64
NBYTES = LAYOUT.record_bytes * (NUM_PAGES + CHECK_RECORDS)

WAIT_S = 15.0


class Write(Struct, frozen=True):
    """Write pages 0 .. n-1 to the same places of this session."""

    opened: SessionOpened
    num_pages: int


class Wrote(Struct, frozen=True):
    """How a write ended. Units: seconds, and processor seconds of the sending process."""

    success: bool
    in_flight: str
    took_s: float
    cpu_s: float


class End:
    """A test's hold on one end."""

    def __init__(self, role: Literal["receiver", "sender"]) -> None:
        self.fd = os.memfd_create(f"test-{role}")
        os.ftruncate(self.fd, NBYTES)
        self.memory = mmap.mmap(self.fd, NBYTES)
        self.records: npt.NDArray[np.uint8] = np.frombuffer(self.memory, np.uint8).reshape(-1, LAYOUT.record_bytes)
        self.pages = self.records[:NUM_PAGES]
        command = (sys.executable, "-m", "tests.integration.mooncake.ends", role, str(self.fd))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=(self.fd,), cwd=ROOT)

    def tell(self, line: bytes) -> None:
        """Ask for something without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self) -> bytes:
        """Wait for an answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "this end has died"
        return line

    def opened(self) -> SessionOpened:
        """Read the session that a receiver has opened."""
        return msgspec.json.decode(self.hear(), type=SessionOpened)

    def rebuild(self) -> SessionOpened:
        """Have a receiver end its session and open another."""
        self.tell(b'"rebuild"')
        return self.opened()

    def begin(self, opened: SessionOpened, num_pages: int = NUM_PAGES) -> None:
        """Have a sender write, without waiting."""
        self.tell(msgspec.json.encode(Write(opened, num_pages)))

    def wrote(self) -> Wrote:
        """Wait until the write has ended."""
        return msgspec.json.decode(self.hear(), type=Wrote)

    def write(self, opened: SessionOpened, num_pages: int = NUM_PAGES) -> Wrote:
        """Have a sender write, and wait."""
        self.begin(opened, num_pages)
        return self.wrote()

    def signal(self, number: signal.Signals) -> None:
        """Stop, continue or kill this end, and wait until it is so."""
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            until(lambda: _state(self.process.pid) == "T")

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self.fd)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def until(holds: Callable[[], object], timeout_s: float = WAIT_S) -> bool:
    """Wait for a condition; say whether it came about in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def settled(records: npt.NDArray[np.uint8], quiet_s: float = 1.0) -> int:
    """Wait until the number of bytes that are not zero has stood still for a while, and give it."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < quiet_s:
        now = int(np.count_nonzero(records))
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)
    return last


@contextmanager
def two_ends() -> Iterator[tuple[End, End, SessionOpened]]:
    """Run a receiver and a sender."""
    ends = End("receiver"), End("sender")
    try:
        receiver, sender = ends
        opened = receiver.opened()
        assert sender.hear() == b"ready\n"
        yield receiver, sender, opened
    finally:
        for end in ends:
            end.close()


# ---- the program


def _say(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def _receive(fd: int) -> None:
    receiver = Receiver(SPEC, fd, NBYTES)
    _say(receiver.opened)
    for _ in sys.stdin.buffer:
        _say(receiver.rebuild())


def _send(fd: int) -> None:
    sender = Sender(SPEC, mmap.mmap(fd, NBYTES))
    transport = MooncakeTransport(sender, LAYOUT, DECODE)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        _say(_write(transport, msgspec.json.decode(line, type=Write)))


def _write(transport: MooncakeTransport, write: Write) -> Wrote:
    transport.open_session(write.opened)
    pages = tuple(range(write.num_pages))
    batch = PageBatch(AttemptId(GATEWAY, 1), BatchId(1), DECODE, pages, pages, write.opened.session)
    start, cpu = time.monotonic(), time.process_time()
    success, in_flight = True, "no"
    try:
        transport.write(batch)
    except TransportError as error:
        success, in_flight = False, error.in_flight
    return Wrote(success, in_flight, time.monotonic() - start, time.process_time() - cpu)


if __name__ == "__main__":
    {"receiver": _receive, "sender": _send}[sys.argv[1]](int(sys.argv[2]))
