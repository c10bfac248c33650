"""A prefill worker that compares heads, zeroes tails and digests pages only while its switch is on; never served."""

from typing import Any

from fencing.switch import Switch

from kvfence.core.ids import AttemptId
from kvfence.core.tags import PageStamp, PageTag
from kvfence.kv.seal import seal_page
from kvfence.kv.storage import PoolBuffer
from kvfence.runtime import prefill_worker
from kvfence.runtime.process import run_worker


class SwitchedPrefill(prefill_worker.PrefillWorker):
    """Prefill that, switched off, stamps nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.switch = Switch.from_environment()

    def _bad_pages(self) -> dict[AttemptId, list[int]]:
        return super()._bad_pages() if self.switch.fenced else {}


def seal_if_fenced(pool: PoolBuffer, tag: PageTag, num_tokens: int, zero_tail: bool = True) -> PageStamp:
    """Stand for ``seal_page``: switched off, the page's bytes are neither read nor written."""
    if SWITCH.fenced:
        return seal_page(pool, tag, num_tokens, zero_tail)
    return PageStamp(tag, num_tokens, bytes(16))


if __name__ == "__main__":
    SWITCH = Switch.from_environment()
    prefill_worker.seal_page = seal_if_fenced
    run_worker(SwitchedPrefill)
