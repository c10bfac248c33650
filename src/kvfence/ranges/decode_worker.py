"""A practice server's decode worker: production's, with what its orders say goes wrong."""

from typing import Any

from kvfence.driver.mutants import refusal_as_end
from kvfence.protocol.admission import Capacity
from kvfence.ranges.loading import load, practice_views
from kvfence.ranges.orders import read_orders
from kvfence.runtime.decode_worker import DecodeWorker
from kvfence.runtime.process import run_worker


class RangeDecode(DecodeWorker):
    """Decode's process."""

    def views(self) -> list[Any]:
        """Views of the model that runs."""
        return practice_views(self.pool, self.layout) or super().views()

    def start(self, capacity: Capacity) -> None:
        """Start with the mistake in place."""
        super().start(capacity)
        if read_orders().fault == "refusal-as-end":
            self.loop.rewrites.append(refusal_as_end)


if __name__ == "__main__":
    run_worker(RangeDecode, load)
