"""Which prompts begin alike, as a prefill worker knows it: keys of the prompts at work, the index, and the counts.

Not for: deciding what is shared (``protocol/sharing.py``).
"""

from collections.abc import Sequence

import numpy as np

from kvfence.core.ids import AttemptId
from kvfence.core.request import without_content
from kvfence.driver.prefix import PrefixIndex
from kvfence.protocol.commands import Move, Share, StartPrefill
from kvfence.protocol.lots import Lot
from kvfence.protocol.transitions import PageMove

GOING = (PageMove.RELEASE, PageMove.REVOKE)


class Prefixes:
    """What of each prompt may already lie in the pool. Holds: ``counts``, since the start; no tenant is named."""

    __repr__ = without_content

    def __init__(self, page_size: int, index: PrefixIndex | None = None) -> None:
        self.counts = {"hit_tokens": 0, "miss_tokens": 0, "evicted_pages": 0}
        self._page_size = page_size
        self._index = PrefixIndex() if index is None else index
        self._keys: dict[AttemptId, list[bytes]] = {}

    def find(self, attempt: AttemptId, salt: str, token_ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Give the lots that hold a new prompt's first pages; without a salt nothing is looked for."""
        if not salt:
            return ()
        tokens, size = np.asarray(token_ids, dtype="<u4").tobytes(), 4 * self._page_size
        blocks = (tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size))
        self._keys[attempt] = self._index.keys(salt, blocks)
        return self._index.find(self._keys[attempt])

    def num_known(self, attempt: AttemptId, num_shared: int, lot: Lot) -> int:
        """Count the attempt's own pages, from the first, that others of its salt can share already."""
        return self._index.num_known(self._keys.get(attempt, [])[num_shared:], lot.serial)

    def start(self, command: StartPrefill) -> int:
        """Count what a prompt need not compute; give it in tokens."""
        num_hit = sum(len(lot.pages) for lot in command.shared) * self._page_size
        self.counts["hit_tokens"] += num_hit
        self.counts["miss_tokens"] += command.num_tokens - num_hit
        return num_hit

    def share(self, command: Share) -> None:
        """A prompt's pages may be found from now on."""
        keys = self._keys.get(command.attempt, [])
        self._index.add(command.serial, keys[command.first : command.first + command.num_pages])

    def move(self, command: Move) -> None:
        """Pages that go are found no more."""
        if command.move in GOING:
            self.counts["evicted_pages"] += self._index.forget(command.serial, len(command.pages))

    def drop(self, attempt: AttemptId) -> None:
        """Forget the keys of a prompt that is no longer at work."""
        self._keys.pop(attempt, None)
