"""A practice server's prefill worker: production's, with what its orders say goes wrong.

The faults are in the engine, not in the guards: the same program runs with every rule set.
"""

from typing import Any

from kvfence.driver.mutants import placeholder_on_refusal
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import StartPrefill
from kvfence.ranges.loading import load, practice_views
from kvfence.ranges.orders import read_orders
from kvfence.ranges.pieces import SPACE
from kvfence.runtime.prefill_worker import Job, PrefillWorker
from kvfence.runtime.process import run_worker


class RangePrefill(PrefillWorker):
    """Prefill's process."""

    def __init__(self, *args: Any) -> None:
        self.orders = read_orders()
        super().__init__(*args)

    def views(self) -> list[Any]:
        """Views of the model that runs."""
        return practice_views(self.pool, self.layout) or super().views()

    def start(self, capacity: Capacity) -> None:
        """Start with the mistake in place."""
        super().start(capacity)
        if self.orders.fault == "placeholder":
            self.loop.rewrites.append(placeholder_on_refusal(capacity))

    def _begin_job(self, job: Job, command: StartPrefill) -> None:
        if command.num_tokens == 1 < len(job.token_ids):
            job.token_ids = [SPACE if self.orders.practice else 0]
        super()._begin_job(job, command)


if __name__ == "__main__":
    run_worker(RangePrefill, load)
