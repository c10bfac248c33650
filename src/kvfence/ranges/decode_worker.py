"""A practice server's decode worker: production's, on the practice model's pages."""

from typing import Any

from kvfence.ranges.loading import load, practice_views
from kvfence.runtime.decode_worker import DecodeWorker
from kvfence.runtime.process import run_worker


class RangeDecode(DecodeWorker):
    """Decode's process."""

    def views(self) -> list[Any]:
        """Views of the model that runs."""
        return practice_views(self.pool, self.layout) or super().views()


if __name__ == "__main__":
    run_worker(RangeDecode, load)
