"""A prefill worker program with the arithmetic model, whose page writes go wrong when a test says so."""

import signal
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from kvfence.core.ids import Incarnation
from kvfence.core.tags import HEAD_BYTES
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.models.executor import PassRow
from kvfence.protocol.commands import Command, Post
from kvfence.protocol.events import Event
from kvfence.runtime import worker
from kvfence.runtime.lifeline import Begin
from kvfence.runtime.page_writer import SharedMemoryWriter
from kvfence.runtime.prefill_worker import PrefillWorker
from kvfence.runtime.process import Model, run_worker
from tests.integration.runtime.arithmetic import ArithmeticExecutor, arithmetic_views
from tests.integration.runtime.faults import Fault, FaultFolder

SECRET = "a-prompt-that-nobody-may-see"
"""What an error of a library might hold."""


class FaultyPrefill(PrefillWorker):
    """Prefill, stopping, hanging, corrupting, breaking or misdirecting one write."""

    def __init__(self, *args: Any) -> None:
        self.faults = FaultFolder.from_environment()
        self.num_heads = 0
        self.writing, self.num_pages = Incarnation(""), 0
        super().__init__(*args)

    def views(self) -> list[Any]:
        """Views without torch."""
        return arithmetic_views(self.pool, self.layout)

    def on_progress(self, page: int, offset: int) -> None:  # type: ignore[override]
        """Let the armed fault happen at its place in its page."""
        fault = self.faults.armed()
        unlike = ("misdirect", "forget", "spoil")
        if fault is None or fault.kind in unlike or self.num_pages < fault.pages_min:
            self.num_heads = 0
            return
        self.num_heads += offset == HEAD_BYTES
        place = HEAD_BYTES if fault.after == "head" else self.layout.tail_offset
        if self.num_heads == fault.nth and offset == place:
            self.num_heads = 0
            if self.faults.fire(page):
                self._go_wrong(fault, page)

    def _go_wrong(self, fault: Fault, page: int) -> None:
        if fault.kind == "stop":
            # To this very thread: sent to the process, another may take it while this one writes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        while fault.kind == "hang" and self.faults.hangs():
            time.sleep(0.005)
        if fault.kind == "break":
            raise RuntimeError(f"a write broke, and its error holds {SECRET}")
        if fault.kind == "corrupt":
            assert isinstance(self.writer, SharedMemoryWriter)
            memory = self.writer.mapped[self.writing]
            at = page * self.layout.record_bytes + self.layout.offsets[1] + 1003  # an exponent
            memory.buffer[at] ^= 0x40

    def carry_out(self, command: Command) -> Iterable[Event] | None:
        """Misdirect the first page of a batch; note whose pool is written."""
        if isinstance(command, Post):
            self.writing, self.num_pages = command.decode, len(command.source)
        fault = self.faults.armed() if isinstance(command, Post) else None
        if isinstance(command, Post) and fault is not None and fault.kind == "misdirect":
            self.faults.fire(fault.page)
            command = replace(command, destination=(fault.page, *command.destination[1:]))
        return super().carry_out(command)

    def _check_ledger(self) -> None:
        """Forget a page first, or write over its head and its bytes, if told so."""
        fault = self.faults.armed()
        if fault is not None and fault.kind == "spoil":
            self.faults.fire(fault.page)
            self.pool.records[fault.page, : self.layout.tail_offset] = 7
        if fault is not None and fault.kind == "forget":
            self.faults.fire(0)
            ledger = self.loop.ledger
            assert isinstance(ledger, NumpyLedger)
            ledger._states[0] = 1 - ledger._states[0]
            self._checked = None
        super()._check_ledger()


class HeldExecutor(ArithmeticExecutor):
    """Waits before it computes a prompt, if a test says so."""

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Wait at the hold; then run."""
        faults = FaultFolder.from_environment()
        faults.wait_while_held("compute", max(len(row.pages) for row in rows))
        return super().run(rows)


def load(begin: Begin) -> Model:
    """There is nothing to load."""
    return Model(HeldExecutor(begin.settings.pool.page_size), "arithmetic")


if __name__ == "__main__":
    worker.BEAT_S = 0.1  # tests wait for heartbeats
    run_worker(FaultyPrefill, load)
