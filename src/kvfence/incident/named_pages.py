"""Decode's pages as names in numpy arrays: whose bytes each holds, and under which use they were written.

For pools of tens of thousands of pages; with no clock and no faults. Not for: deciding anything. No node asks these.
"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvfence.core.manifest import Manifest

NOBODY, ZEROED = 0, -1
"""Whose bytes a page holds that nobody wrote yet, or that was zeroed."""

Pages = npt.NDArray[np.int64]


class Running(Struct):
    """A sequence at decode. ``owner``: the number of its request.

    Shapes: pages, and the serial and page that each page's head must show, one each; -1: nothing was promised.
    """

    owner: int
    pages: Pages
    serials: Pages
    origins: Pages
    num_kv: int
    num_new: int = 1


class Read(Struct, frozen=True):
    """What one token was computed from. ``bad``: pages whose heads were not the expected ones.

    Units: foreign, zeroed in pages. ``owners``: whose the foreign ones were.
    """

    foreign: int
    zeroed: int
    owners: tuple[int, ...]
    bad: tuple[int, ...]


class NamedPages:
    """The pages of one pool."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._owner: Pages = np.full(num_pages, NOBODY, np.int64)
        self._head_serial: Pages = np.zeros(num_pages, np.int64)
        self._head_page: Pages = np.full(num_pages, -1, np.int64)

    def land(self, owner: int, serial: int, source: tuple[int, ...], destination: tuple[int, ...]) -> None:
        """Write whole records: a request's bytes, and heads that name prefill's use of its own pages."""
        pages = np.array(destination)
        self._owner[pages], self._head_serial[pages], self._head_page[pages] = owner, serial, np.array(source)

    def zero(self, pages: tuple[int, ...]) -> None:
        """Zero the bytes; heads stay as they are."""
        self._owner[np.array(pages)] = ZEROED

    def mismatches(self, pages: tuple[int, ...], manifest: Manifest) -> tuple[int, ...]:
        """Give the pages whose heads are not what was promised for them."""
        serials, origins = _promised(len(pages), manifest)
        here = np.array(pages)
        wrong = (self._head_serial[here] != serials) | (self._head_page[here] != origins)
        return tuple(here[wrong].tolist())

    def adopt(self, owner: int, num_tokens: int, pages: tuple[int, ...], manifest: Manifest) -> Running:
        """Make a sequence of adopted pages; the last, where it is not full, is left to ``extend`` with its copy."""
        serials, origins = _promised(len(pages), manifest)
        whole = len(pages) - bool(num_tokens % self.page_size)
        return Running(owner, np.array(pages)[:whole], serials[:whole], origins[:whole], num_tokens)

    def copy(self, source: int, destination: int) -> None:
        """Copy a page's bytes."""
        self._owner[destination] = self._owner[source]

    def extend(self, running: Running, serial: int, pages: tuple[int, ...]) -> None:
        """Give a sequence pages that decode writes itself: their heads are its own, told from prefill's by the sign."""
        own = np.array(pages)
        self._head_serial[own], self._head_page[own] = -serial, own
        running.pages = np.concatenate((running.pages, own))
        running.serials = np.concatenate((running.serials, np.full(len(own), -serial)))
        running.origins = np.concatenate((running.origins, own))

    def read(self, running: Running) -> Read:
        """Write the next token into its page and read all pages up to it."""
        used = running.num_kv // self.page_size + 1
        pages = running.pages[:used]
        if running.num_kv % self.page_size == 0:
            self._owner[pages[-1]] = running.owner
        owners = self._owner[pages]
        others = owners[(owners != running.owner) & (owners > NOBODY)]
        wrong = (self._head_serial[pages] != running.serials[:used]) | (
            self._head_page[pages] != running.origins[:used]
        )
        running.num_kv, running.num_new = running.num_kv + 1, running.num_new + 1
        return Read(
            len(others),
            int(np.count_nonzero(owners <= NOBODY)),
            tuple(np.unique(others).tolist()),
            tuple(pages[wrong].tolist()),
        )


def _promised(num_pages: int, manifest: Manifest) -> tuple[Pages, Pages]:
    """Give the serial and page that each head must show."""
    origins = np.full(num_pages, -1)
    promised = manifest.origin_pages[:num_pages]
    origins[: len(promised)] = promised
    serials = np.full(num_pages, manifest.origin_serial)
    return serials, origins
