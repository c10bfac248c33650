"""A worker's pool in few bytes, as heartbeats carry it for ``/fence``: runs of pages in one state under one holder.

``drawing.py`` makes it. Not for: what tenants are called (``gateway/fence.py``).
"""

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation

NOBODY, UNNAMED = -1, -2
"""Instead of a holder: the page is free; its holder is one too many to be named."""


class PageRun(Struct, frozen=True, array_like=True):
    """Cells that follow each other and look alike. ``state``: index in ``PageState``. ``holder``: index in the map."""

    state: int
    holder: int
    num_cells: int


class PageMap(Struct, frozen=True):
    """A pool as it stands. ``pages_per_cell``: 1 unless the pool is too ragged for that.

    Shapes:
        holders: (index in ``gateways``, counter) of attempts; phases: (index in ``holders``, phase) of those open.
    """

    num_pages: int
    pages_per_cell: int
    runs: tuple[PageRun, ...]
    gateways: tuple[Incarnation, ...] = ()
    holders: tuple[tuple[int, int], ...] = ()
    phases: tuple[tuple[int, str], ...] = ()

    def attempts(self) -> list[AttemptId]:
        """Give the holders."""
        return [AttemptId(self.gateways[gateway], counter) for gateway, counter in self.holders]
