"""All that a hand-off promises about the pages it carries.

Prefill makes it, decode compares it; ``protocol/decode.py`` says with what.
"""

from msgspec import Struct

from kvfence.core.ids import Incarnation
from kvfence.core.tags import PageTag


class Manifest(Struct, frozen=True):
    """What prefill says it wrote.

    Shapes:
        origin_pages: one source page per destination page, in prompt order.
        shared: the first of these were written for an earlier request of the same tenant: (serial, number of pages)
            run by run; all behind them under ``origin_serial``.
    Units:
        digest: 16 bytes over the ordered stamps, as hex.
        pool_tokens, context_tokens: the sender's own limits.
    """

    num_tokens: int
    origin: Incarnation
    origin_serial: int
    origin_pages: tuple[int, ...]
    layout: str
    digest: str = ""
    pool_tokens: int = 0
    context_tokens: int = 0
    shared: tuple[tuple[int, int], ...] = ()

    def origin_tag(self, index: int) -> PageTag | None:
        """The origin stamp that destination page ``index`` must show; None where nothing was promised."""
        if index >= len(self.origin_pages):
            return None
        return PageTag(self.origin, self._serial(index), self.origin_pages[index])

    def _serial(self, index: int) -> int:
        for serial, num_pages in self.shared:
            if index < num_pages:
                return serial
            index -= num_pages
        return self.origin_serial
