"""A decode worker program with the arithmetic model, whose passes wait when a test says so."""

import time
from collections.abc import Sequence
from typing import Any

from kvfence.kv.seal import VerifyReport
from kvfence.models.executor import PassRow
from kvfence.protocol.commands import Verify
from kvfence.runtime import worker
from kvfence.runtime.decode_worker import DecodeWorker
from kvfence.runtime.lifeline import Begin
from kvfence.runtime.process import Model, run_worker
from tests.integration.runtime.arithmetic import ArithmeticExecutor, arithmetic_views
from tests.integration.runtime.faults import FaultFolder


class HeldExecutor(ArithmeticExecutor):
    """Waits in the middle of a pass, before it reads or writes a page."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self.faults = FaultFolder.from_environment()

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Wait while a row stands at the held position or beyond; then run."""
        while (held := self.faults.held()) is not None and any(row.start >= held for row in rows):
            time.sleep(0.002)
        return super().run(rows)


class HeldDecode(DecodeWorker):
    """Decode over views without torch, whose verification waits when a test says so."""

    def _report(self, command: Verify) -> VerifyReport:
        FaultFolder.from_environment().wait_while_held("verify", len(command.pages))
        return super()._report(command)

    def views(self) -> list[Any]:
        """Views without torch."""
        return arithmetic_views(self.pool, self.layout)


def load(begin: Begin) -> Model:
    """There is nothing to load."""
    return Model(HeldExecutor(begin.settings.pool.page_size), "arithmetic")


if __name__ == "__main__":
    worker.BEAT_S = 0.1  # tests wait for heartbeats
    run_worker(HeldDecode, load)
