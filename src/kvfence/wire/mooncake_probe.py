"""What Mooncake must do before pages are trusted to it, tried with real transfers at start, in a second or three.

A receiving and a sending engine of this process, opened as the workers' are and driven through the same transport:
written bytes are there and read back, an address outside the pool is refused, a session that is over takes nothing,
its successor works, and one batch ends well within the time-out. Whatever does not hold is refused by name. In which
order bytes became visible is observed and reported; it is no promise, and none is made of it.

Not for: whether two machines reach each other (``MooncakeTransport.check_link``).
"""

import hashlib
import io
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvfence.core.errors import TransportError
from kvfence.core.ids import AttemptId, BatchId, Incarnation, SessionId
from kvfence.core.layout import KVLayout
from kvfence.core.tags import HEAD_BYTES
from kvfence.wire.mooncake import CHECK_RECORDS, MooncakeTransport, Receiver, Sender
from kvfence.wire.mooncake_engine import TIMEOUT_S, EngineSpec
from kvfence.wire.transport import PageBatch

PAGES_MAX = 16
BYTES_MAX = 16 << 20
SHARE_MAX = 0.5
"""Part of the time-out that a batch of ``batch_pages_max`` pages may need at the rate seen."""

_HERE = Incarnation("0" * 31 + "1")

Records = npt.NDArray[np.uint8]


class Finding(Struct, frozen=True):
    """One thing that was tried."""

    name: str
    holds: bool
    detail: str = ""


class ProbeReport(Struct, frozen=True):
    """What the probe found. Units: num_out_of_order of num_records: bodies seen before their heads."""

    findings: tuple[Finding, ...]
    bytes_per_s: float
    num_records: int
    num_out_of_order: int

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What does not hold."""
        return tuple(finding for finding in self.findings if not finding.holds)


def probe(spec: EngineSpec, layout: KVLayout, batch_pages_max: int) -> ProbeReport:
    """Try the transport on this machine with records of this layout; see above for what.

    Raises:
        TransportError: no engine can be opened.
    """
    num_pages = max(1, min(PAGES_MAX, batch_pages_max, BYTES_MAX // layout.record_bytes))
    with _words_kept() as words, _bench(spec, layout, num_pages) as bench:
        order = bench.watch_order()
        findings = [bench.lands(), bench.reads_back(), bench.stays_inside(), *bench.ends_sessions()]
        rate = bench.rate()
    if not all(finding.holds for finding in findings):
        sys.stderr.write(words.getvalue())
    needs_s = batch_pages_max * layout.record_bytes / rate
    findings.append(
        Finding(
            "batch-ends-in-time",
            needs_s <= TIMEOUT_S * SHARE_MAX,
            f"{batch_pages_max} pages need {needs_s:.1f} s of {TIMEOUT_S:.0f} s at {rate / 1e6:.0f} MB/s: "
            "lower limits.batch_pages_max",
        )
    )
    return ProbeReport(tuple(findings), rate, *order)


def require_capable(report: ProbeReport, spec: EngineSpec) -> None:
    """Refuse a transport that does not do what the fence needs.

    Raises:
        TransportError: names everything that does not hold.
    """
    if report.refused:
        names = "; ".join(f"{finding.name} ({finding.detail})" for finding in report.refused)
        raise TransportError(
            f"Mooncake over {spec.protocol} at {spec.host} is refused, for this does not hold: {names}; "
            "--transport shm needs none of it",
            "no",
        )


class _Bench:
    """Both ends and their memory."""

    def __init__(self, ends: tuple[Receiver, Sender], memories: tuple[mmap.mmap, mmap.mmap], layout: KVLayout) -> None:
        self.receiver, self.sender = ends
        self.layout = layout
        self.transport = MooncakeTransport(self.sender, layout, _HERE)
        self.transport.open_session(self.receiver.opened)
        self.source, self.target = (_records(memory, layout) for memory in memories)
        self.num_pages = len(self.source) - CHECK_RECORDS

    def write(self, session: SessionId | None = None) -> bool:
        """Write every record through the transport."""
        pages = tuple(range(self.num_pages))
        session = self.receiver.opened.session if session is None else session
        try:
            self.transport.write(PageBatch(AttemptId(_HERE, 1), BatchId(1), _HERE, pages, pages, session))
        except TransportError:
            return False
        return True

    def watch_order(self) -> tuple[int, int]:
        """Give how many records were watched while they landed, and how many showed a body before its head."""
        self.source[:], self.target[:] = 0x5A, 0
        early: set[int] = set()
        with ThreadPoolExecutor(1, "probe") as thread:
            writing = thread.submit(self.write)
            while not writing.done():
                bodies = self.target[: self.num_pages, HEAD_BYTES] != 0  # the body first: the head may land in between
                ends = self.target[: self.num_pages, self.layout.tail_offset - 1] != 0
                heads = self.target[: self.num_pages, HEAD_BYTES - 1] != 0
                early |= set(np.flatnonzero((bodies | ends) & ~heads).tolist())
        return self.num_pages, len(early)

    def lands(self) -> Finding:
        """Success means that every byte is there, by digest."""
        self.source[:] = np.random.default_rng(1).integers(0, 256, self.source.shape, dtype=np.uint8)
        said = self.write()
        same = _digest(self.source[: self.num_pages]) == _digest(self.target[: self.num_pages])
        return Finding("success-means-landed", said and same, "a written pattern did not arrive")

    def reads_back(self) -> Finding:
        """What was written can be read by the peer that wrote it."""
        return Finding("reads-back", self.transport.check_link(2), "a written pattern could not be read back")

    def stays_inside(self) -> Finding:
        """An address outside the pool is refused, and nothing changes."""
        opened, engine, before = self.receiver.opened, self.sender.engine, _digest(self.target)
        beyond = opened.base + opened.nbytes
        taken = engine.write(f"{opened.host}:{opened.port}", [engine.base], [beyond], self.layout.record_bytes)
        holds = not taken and before == _digest(self.target)
        return Finding("outside-is-refused", holds, "a write behind the end of the pool was taken")

    def ends_sessions(self) -> tuple[Finding, ...]:
        """After a rebuild the old session takes nothing, by name or by its address, and the new one works."""
        old, engine = self.receiver.opened, self.sender.engine
        new = self.receiver.rebuild()
        self.transport.open_session(new)
        unlike = new.session != old.session and new.port != old.port and new.base != old.base
        self.target[:] = 0
        nbytes = self.layout.record_bytes
        refused = not self.write(old.session)
        refused &= not engine.write(f"{old.host}:{old.port}", [engine.base], [old.base], nbytes)
        refused &= not engine.write(f"{new.host}:{new.port}", [engine.base], [old.base], nbytes)
        quiet = not self.target.any()
        self.sender.rebuild()  # as after every batch that failed
        works = self.lands()
        return (
            Finding("sessions-are-unlike", unlike, "a rebuilt engine is where the old one was"),
            Finding("old-session-is-refused", refused and quiet, "a session that is over took a write"),
            Finding("new-session-works", works.holds, works.detail),
        )

    def rate(self) -> float:
        """Give bytes a second of the best of three batches."""
        best = float("inf")
        for _ in range(3):
            start = time.monotonic()
            self.write()
            best = min(best, time.monotonic() - start)
        return self.num_pages * self.layout.record_bytes / best

    def close(self) -> None:
        """Destroy both engines."""
        self.sender.close()
        self.receiver.close()


@contextmanager
def _bench(spec: EngineSpec, layout: KVLayout, num_pages: int) -> Iterator[_Bench]:
    nbytes = layout.record_bytes * (num_pages + CHECK_RECORDS)
    fds, memories = zip(*(_memory(nbytes) for _ in range(2)), strict=True)
    bench: _Bench | None = None
    try:
        bench = _Bench((Receiver(spec, fds[1], nbytes), Sender(spec, memories[0])), memories, layout)
        yield bench
    finally:
        if bench is not None:
            bench.close()
        for fd in fds:
            os.close(fd)


@contextmanager
def _words_kept() -> Iterator[io.StringIO]:
    """Keep what the engine says of the refusals asked for here: it is passed on where one of them did not come."""
    sys.stderr.flush()
    words, kept = io.StringIO(), os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield words
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            words.write(file.read().decode(errors="replace"))


def _memory(nbytes: int) -> tuple[int, mmap.mmap]:
    fd = os.memfd_create("kvfence-probe")
    os.ftruncate(fd, nbytes)
    return fd, mmap.mmap(fd, nbytes)


def _records(memory: mmap.mmap, layout: KVLayout) -> Records:
    records: Any = np.frombuffer(memory, dtype=np.uint8)
    view: Records = records.reshape(-1, layout.record_bytes)
    return view


def _digest(records: Records) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(records).tobytes(), digest_size=16).digest()
