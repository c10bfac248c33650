"""A prefill worker that compares no head, zeroes no tail and digests no page; see ``unguarded_decode.py``."""

from kvfence.core.ids import AttemptId
from kvfence.core.tags import PageStamp, PageTag
from kvfence.kv.storage import PoolBuffer
from kvfence.runtime import prefill_worker
from kvfence.runtime.process import run_worker


class UnguardedPrefill(prefill_worker.PrefillWorker):
    """Prefill that stamps nothing."""

    def _bad_pages(self) -> dict[AttemptId, list[int]]:
        return {}


def stamp_nothing(pool: PoolBuffer, tag: PageTag, num_tokens: int, zero_tail: bool = True) -> PageStamp:
    """Stand for ``seal_page``: the page's bytes are neither read nor written."""
    del pool, zero_tail
    return PageStamp(tag, num_tokens, bytes(16))


if __name__ == "__main__":
    prefill_worker.seal_page = stamp_nothing
    run_worker(UnguardedPrefill)
