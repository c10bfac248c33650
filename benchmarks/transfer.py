"""What verification costs a transfer: the same bytes sent raw, and sealed, sent and verified, in turn.

    python benchmarks/transfer.py [--json] [--quick]

Two processes, records of the embedded model's size, batches as in production. *Raw*: the transport alone. *Verified,
overlapped*: while one batch travels, the next is sealed (a digest of each page) by the sender and the one before is
verified (heads, tails, digests) by the receiver. *Verified, in a row*: sealed, sent, and verified once all is there,
as the workers do it today, where sealing overlaps with computing instead. Ratios of medians over interleaved rounds,
CPU seconds of both processes beside. Goal: overlapped over Mooncake at 0.95 of raw; exit 1 where it is missed. On
shared memory the ratio is reported. Without Mooncake its part is unknown.
"""

import argparse
import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.core.ids import AttemptId, BatchId, Incarnation
from kvfence.core.layout import KVLayout, Segment
from kvfence.core.tags import PageTag
from kvfence.kv.seal import pack_tags, seal_pages, verify_pages, write_head
from kvfence.kv.storage import PoolBuffer
from kvfence.wire.frames import SessionOpened
from kvfence.wire.mooncake import CHECK_RECORDS, MooncakeTransport, Receiver, Sender
from kvfence.wire.mooncake_engine import EngineSpec, load_library
from kvfence.wire.shm import SharedMemoryTransport
from kvfence.wire.transport import PageBatch, Transport

PREFILL, DECODE = (Incarnation(digit * 32) for digit in "12")
LAYOUT = KVLayout(16, tuple(Segment(name, layer, (3, 64), "bfloat16") for layer in range(30) for name in ("k", "v")))
BATCH = 64
SPEC = EngineSpec("127.0.0.1")
GOAL = 0.95

Clock = tuple[float, float]


class Measure(Struct, frozen=True):
    """One way over one transport. Units: seconds and processor seconds of both processes, medians of a round."""

    transport: str
    way: str
    wall_s: float
    cpu_s: float
    bytes_per_s: float
    ratio: float


class Report(Struct, frozen=True):
    """Everything, and what it comes to."""

    cpu: str
    cores: int
    python: str
    load_before: float
    load_after: float
    megabytes: float
    rounds: int
    measures: list[Measure]
    headline: str
    missed: bool


class Memory:
    """A pool in a memory file. Holds: the file."""

    def __init__(self, fd: int, num_pages: int) -> None:
        self.fd, self.nbytes = fd, LAYOUT.record_bytes * (num_pages + CHECK_RECORDS)
        os.ftruncate(fd, self.nbytes)
        self.buffer = mmap.mmap(fd, self.nbytes)
        self.pool = PoolBuffer(self.buffer, LAYOUT, num_pages)


def tags_of(pages: range) -> list[PageTag]:
    """The tags a batch is sealed under."""
    return [PageTag(PREFILL, 1, page) for page in pages]


# ---- the receiving process


def receive(fd: int, num_pages: int, with_mooncake: bool) -> None:
    """Open a session, then verify what each line names and say so with the processor seconds used so far."""
    memory = Memory(fd, num_pages)
    receiver = Receiver(SPEC, fd, memory.nbytes) if with_mooncake else None  # it lives as long as it is referred to
    say(receiver.opened if receiver is not None else None)
    for line in sys.stdin:
        start, stop = (int(word) for word in line.split())
        pages = range(start, stop)
        clean = not pages or verify_pages(memory.pool, pages, tags_of(pages), len(pages) * LAYOUT.page_size).clean
        say((clean, time.process_time()))
    os._exit(0)


def say(value: object) -> None:
    """Write one line of JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


class Peer:
    """The sender's hold on the receiving process."""

    def __init__(self, fd: int, num_pages: int, with_mooncake: bool) -> None:
        command = [sys.executable, __file__, "--receive", str(fd), str(num_pages), str(int(with_mooncake))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=(fd,), text=True)
        self.opened = msgspec.json.decode(self.hear(), type=SessionOpened | None)

    def hear(self) -> str:
        """Read a line."""
        if self.process.stdout is None or not (line := self.process.stdout.readline()):
            raise SystemExit("the receiving process has died")
        return line

    def ask(self, pages: range) -> None:
        """Have pages verified, without waiting."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{pages.start} {pages.stop}\n")
            self.process.stdin.flush()

    def answer(self) -> float:
        """Wait for one verification and give the processor seconds the process has used."""
        clean, cpu_s = msgspec.json.decode(self.hear(), type=tuple[bool, float])
        if not clean:
            raise SystemExit("a verified transfer was not clean")
        return cpu_s

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


# ---- the ways


class Bench:
    """One transport between two pools."""

    def __init__(self, name: str, num_pages: int, *, with_mooncake: bool) -> None:
        self.name, self.num_pages = name, num_pages
        self.source, self.target = (Memory(os.memfd_create(f"bench-{end}"), num_pages) for end in "sr")
        self.source.pool.records[:, LAYOUT.body] = 1
        self.peer = Peer(self.target.fd, num_pages, with_mooncake)
        self.transport: Transport = self._mooncake() if with_mooncake else self._shared()
        self.thread = ThreadPoolExecutor(1, "writer")
        self.batches = [range(at, min(at + BATCH, num_pages)) for at in range(0, num_pages, BATCH)]

    def _mooncake(self) -> MooncakeTransport:
        transport = MooncakeTransport(Sender(SPEC, self.source.buffer), LAYOUT, DECODE)
        if self.peer.opened is not None:
            transport.open_session(self.peer.opened)
        return transport

    def _shared(self) -> SharedMemoryTransport:
        return SharedMemoryTransport(self.source.buffer, self.target.buffer, LAYOUT, DECODE)

    def write(self, pages: range) -> None:
        """Send one batch."""
        session: Any = self.peer.opened.session if self.peer.opened is not None else ""
        where = tuple(pages)
        self.transport.write(PageBatch(AttemptId(PREFILL, 1), BatchId(1), DECODE, where, where, session))

    def seal(self, pages: range) -> None:
        """Head, digest and tail of one batch."""
        write_head(self.source.pool, pages, pack_tags(tags_of(pages)))
        seal_pages(self.source.pool, tags_of(pages), len(pages) * LAYOUT.page_size)

    def raw(self) -> None:
        """The transport alone."""
        for pages in self.batches:
            self.write(pages)

    def overlapped(self) -> None:
        """Seal the next and verify the last while one travels."""
        self.seal(self.batches[0])
        for index, pages in enumerate(self.batches):
            sending = self.thread.submit(self.write, pages)
            if index + 1 < len(self.batches):
                self.seal(self.batches[index + 1])
            sending.result()
            self.peer.ask(pages)
        for _ in self.batches:
            self.peer.answer()

    def in_a_row(self) -> None:
        """Seal, send, verify."""
        for pages in self.batches:
            self.seal(pages)
        self.raw()
        self.peer.ask(range(self.num_pages))
        self.peer.answer()

    def cpu_s(self) -> float:
        """Processor seconds of both processes so far."""
        self.peer.ask(range(0))
        return time.process_time() + self.peer.answer()

    def timed(self, way: Callable[[], None]) -> Clock:
        """Wall and processor seconds of one run."""
        self.target.pool.records[:] = 0
        cpu, start = self.cpu_s(), time.monotonic()
        way()
        wall = time.monotonic() - start
        return wall, self.cpu_s() - cpu


def measure(bench: Bench, rounds: int) -> list[Measure]:
    """Run every way in turn, and once unmeasured."""
    ways = {"raw": bench.raw, "verified, overlapped": bench.overlapped, "verified, in a row": bench.in_a_row}
    runs: dict[str, list[Clock]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        order = list(ways) if number % 2 else list(reversed(ways))
        for name in order:
            clock = bench.timed(ways[name])
            if number:
                runs[name].append(clock)
    raw = median(wall for wall, _ in runs["raw"])
    nbytes = bench.num_pages * LAYOUT.record_bytes
    medians = {name: (median(wall for wall, _ in row), median(cpu for _, cpu in row)) for name, row in runs.items()}
    return [Measure(bench.name, name, wall, cpu, nbytes / wall, raw / wall) for name, (wall, cpu) in medians.items()]


def run(quick: bool) -> Report:
    """Measure both transports."""
    num_pages, rounds = (128, 3) if quick else (256, 11)
    load, measures, missing = os.getloadavg()[0], [], ""
    kinds = {"shm": False, "mooncake": True}
    try:
        load_library()
    except SettingsError as error:
        missing = str(error)
        del kinds["mooncake"]
    for name, with_mooncake in kinds.items():
        bench = Bench(name, num_pages, with_mooncake=with_mooncake)
        try:
            measures += measure(bench, rounds)
        finally:
            bench.peer.close()
    ratios = {(row.transport, row.way): row.ratio for row in measures}
    over = ratios.get(("mooncake", "verified, overlapped"))
    headline = f"verified over Mooncake: {over:.3f} of raw (goal {GOAL})" if over else f"Mooncake UNKNOWN: {missing}"
    headline += f"; over shared memory {ratios[('shm', 'verified, overlapped')]:.3f}"
    return Report(
        cpu_name(),
        os.cpu_count() or 0,
        platform.python_version(),
        load,
        os.getloadavg()[0],
        num_pages * LAYOUT.record_bytes / 1e6,
        rounds,
        measures,
        headline,
        missed=over is not None and over < GOAL,
    )


def cpu_name() -> str:
    """Give the processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--receive", nargs=3, metavar=("FD", "PAGES", "MOONCAKE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        fd, num_pages, with_mooncake = (int(word) for word in arguments.receive)
        receive(fd, num_pages, bool(with_mooncake))
    report = run(arguments.quick)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
        return int(report.missed)
    print(
        f"{report.cpu}, {report.cores} cores, Python {report.python}, load {report.load_before:.1f} to "
        f"{report.load_after:.1f}; {report.megabytes:.0f} MB a run, {report.rounds} interleaved rounds"
    )
    for row in report.measures:
        print(
            f"{row.transport:9} {row.way:21} {row.wall_s * 1e3:8.1f} ms  {row.bytes_per_s / 1e9:6.2f} GB/s  "
            f"{row.cpu_s * 1e3:8.1f} CPU ms  {row.ratio:6.3f} of raw"
        )
    print(report.headline)
    return int(report.missed)


if __name__ == "__main__":
    sys.exit(main())
