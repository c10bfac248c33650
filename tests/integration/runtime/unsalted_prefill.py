"""The arithmetic prefill worker with an index of prefixes that forgets whose they are."""

from typing import Any

from kvfence.driver.mutants import UnsaltedIndex
from kvfence.runtime import worker
from kvfence.runtime.prefixes import Prefixes
from kvfence.runtime.process import run_worker
from tests.integration.runtime.arithmetic_prefill import FaultyPrefill, load


class UnsaltedPrefill(FaultyPrefill):
    """Prefill whose hints cross tenants."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.prefixes = Prefixes(self.layout.page_size, UnsaltedIndex())


if __name__ == "__main__":
    worker.BEAT_S = 0.1
    run_worker(UnsaltedPrefill, load)
