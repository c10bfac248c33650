"""One-sided writes over Mooncake's transfer engine: TCP, or RDMA where present.

Fence. A batch that timed out can still land, all of it, from a source that has been used anew; the sender's death
does not end that, nor does taking back the registration. What ends it is a new session of the **receiver**: its
engine destroyed and another opened, on other ports and at another address of the same memory. A batch that succeeded
was acknowledged after its last byte and is quiet. After one that failed, the sender reads its source until its own
engine is destroyed: ``Sender.rebuild``.

Order. Over TCP one record travels in one stream, in address order, but the engine promises nobody that a reader sees
it so, and over RDMA even that is not known: ``lands_in_order`` is False, and the comparison at read is a probe.

Bound. At most one batch is outstanding at a time, of ``batch_pages_max`` pages; ``drain_s`` says how long after it
was begun its outcome is known. No time at all makes a failed one quiet.

Next: ``mooncake_engine.py``; ``mooncake_probe.py`` tries all of this at start.
"""

import mmap

import numpy as np

from kvfence.core.errors import TransportError
from kvfence.core.ids import Incarnation, SessionId, new_session
from kvfence.core.invariant import require
from kvfence.core.layout import KVLayout
from kvfence.core.limits import Limits
from kvfence.protocol.transitions import Fence
from kvfence.wire.frames import SessionOpened
from kvfence.wire.mooncake_engine import BATCH_PAGES_MAX, TIMEOUT_S, Engine, EngineSpec, answers
from kvfence.wire.transport import PageBatch, check_batch

CHECK_RECORDS = 1
"""Records behind each pool that no sequence ever has: where a new link is tried."""


def drain_s(batch_bytes: int, bytes_per_s: float) -> float:
    """Give the time after which a batch's outcome is known, whatever happens: its bytes at that rate, or a time-out.

    The engine's time-out counts from the call, so a batch that needs longer than it can never succeed.
    """
    return batch_bytes / bytes_per_s + TIMEOUT_S


class Receiver:
    """Decode's receiving engine, one session after another, over one memory file.

    Owner:
        One thread at a time.
    """

    def __init__(self, spec: EngineSpec, fd: int, nbytes: int) -> None:
        self._spec = spec
        self._fd = fd
        self._nbytes = nbytes
        self._engine, self._mapping = self._open()
        self.opened = self._describe(new_session())

    def rebuild(self) -> SessionOpened:
        """Open a new session, end the old one, and describe the new one: nothing posted to the old one lands now.

        The new mapping exists before the old one is gone, so that it lies elsewhere.
        """
        old_engine, old_mapping = self._engine, self._mapping
        self._engine, self._mapping = self._open()
        old_engine.close()
        old_mapping.close()
        self.opened = self._describe(new_session())
        return self.opened

    def close(self) -> None:
        """End the last session."""
        self._engine.close()
        self._mapping.close()

    def _open(self) -> tuple[Engine, mmap.mmap]:
        mapping = mmap.mmap(self._fd, self._nbytes)
        return Engine(self._spec, mapping), mapping

    def _describe(self, session: SessionId) -> SessionOpened:
        return SessionOpened(session, self._spec.host, self._engine.port, self._engine.base, self._nbytes)


class Sender:
    """Prefill's sending engine, one life after another; every peer is written to through it.

    Owner:
        The writer's thread.
    """

    def __init__(self, spec: EngineSpec, buffer: mmap.mmap) -> None:
        self._spec = spec
        self.buffer = buffer
        self.engine = Engine(spec, buffer)

    def rebuild(self) -> SessionId:
        """Destroy the engine, after which no source is read any more, and open another."""
        self.engine.close()
        self.engine = Engine(self._spec, self.buffer)
        return new_session()

    def close(self) -> None:
        """Destroy the engine."""
        self.engine.close()


class MooncakeTransport:
    """Writes whole records into one decode worker's current session.

    ``opened``: that session, None before it was told. ``failures``: batches that ended in non-success; whoever
    queued a batch before one of them must not have it written.
    """

    fence = Fence.NEW_SESSION
    lands_in_order = False

    def __init__(
        self,
        sender: Sender,
        layout: KVLayout,
        decode: Incarnation,
        *,
        batch_pages_max: int = Limits().batch_pages_max,
    ) -> None:
        require(batch_pages_max <= BATCH_PAGES_MAX, f"Mooncake takes at most {BATCH_PAGES_MAX} pages at once")
        self.decode = decode
        self.batch_pages_max = batch_pages_max
        self.opened: SessionOpened | None = None
        self.failures = 0
        self._met: tuple[Engine, SessionId] | None = None
        self._past: set[SessionId] = set()
        self._sender = sender
        self._layout = layout

    def open_session(self, opened: SessionOpened) -> None:
        """Write to this session from now on, and to no earlier one ever again."""
        if opened.session in self._past:
            return
        if self.opened is not None and self.opened.session != opened.session:
            self._past.add(self.opened.session)
        self.opened = opened

    def is_past(self, session: SessionId) -> bool:
        """Is this session known to be over?"""
        return session in self._past

    def write(self, batch: PageBatch) -> None:
        """Write the batch; see ``Transport.write``.

        Raises:
            TransportError: ``in_flight`` is "no" where it was never posted: its session is not the current one or does
                not answer, or a page is none of this pool's. It is "unknown" after any other failure: bytes may land
                in that session for as long as it lives, and the source may be read until ``Sender.rebuild``.
        """
        opened = self._current(batch)
        record_bytes = self._layout.record_bytes
        engine = self._met_by(opened)
        num_pages = (engine.nbytes // record_bytes - CHECK_RECORDS, opened.nbytes // record_bytes - CHECK_RECORDS)
        check_batch(batch, self.decode, num_pages, self.batch_pages_max)
        sources = [engine.base + page * record_bytes for page in batch.source]
        targets = [opened.base + page * record_bytes for page in batch.destination]
        if not engine.write(f"{opened.host}:{opened.port}", sources, targets, record_bytes):
            self.failures += 1
            raise TransportError(f"a batch of {len(sources)} pages was not acknowledged", "unknown")

    def _met_by(self, opened: SessionOpened) -> Engine:
        """Give our engine once the session has answered us: at first contact the engine would wait a minute for it."""
        engine = self._sender.engine
        if self._met is None or self._met[0] is not engine or self._met[1] != opened.session:
            if not answers(opened.host, opened.port):
                raise TransportError(f"no engine answers at {opened.host}:{opened.port}", "no")
            self._met = (engine, opened.session)
        return engine

    def _current(self, batch: PageBatch) -> SessionOpened:
        if self.opened is None or batch.session != self.opened.session:
            raise TransportError("the batch is for a session that is over, or was never opened", "no")
        return self.opened

    def check_link(self, seed: int) -> bool:
        """Write a pattern to the record behind the peer's pool, read it back, and say whether it is the same.

        Owner:
            The last record of our own buffer, which belongs to this check alone.
        """
        if self.opened is None:
            return False
        opened, nbytes = self.opened, self._layout.record_bytes
        try:
            engine = self._met_by(opened)
        except TransportError:
            return False
        offset = engine.nbytes - nbytes
        here, there = engine.base + offset, opened.base + opened.nbytes - nbytes
        to = f"{opened.host}:{opened.port}"
        record = np.frombuffer(self._sender.buffer, np.uint8, nbytes, offset)
        pattern = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
        record[:] = pattern
        if not engine.write(to, [here], [there], nbytes):
            self.failures += 1
            return False
        record[:] = 0
        return engine.read(to, here, there, nbytes) and bool(np.array_equal(record, pattern))
