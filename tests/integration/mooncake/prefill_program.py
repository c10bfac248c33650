"""A prefill worker over Mooncake with the arithmetic model."""

from typing import Any

from kvfence.runtime import worker
from kvfence.runtime.lifeline import Begin
from kvfence.runtime.prefill_worker import PrefillWorker
from kvfence.runtime.process import Model, run_worker
from tests.integration.mooncake.programs import enter_namespace, wait_before_batches
from tests.integration.runtime.arithmetic import ArithmeticExecutor, arithmetic_views


class ArithmeticPrefill(PrefillWorker):
    """Prefill over views without torch."""

    def views(self) -> list[Any]:
        """Views without torch."""
        return arithmetic_views(self.pool, self.layout)


def load(begin: Begin) -> Model:
    """There is nothing to load."""
    return Model(ArithmeticExecutor(begin.settings.pool.page_size), "arithmetic")


if __name__ == "__main__":
    worker.BEAT_S = 0.1  # tests wait for heartbeats
    enter_namespace("prefill")
    wait_before_batches()
    run_worker(ArithmeticPrefill, load)
