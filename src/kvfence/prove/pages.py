"""Pages as symbols, part by part, and one-sided writes on their way; immutable and hashable.

A page is ``head | bytes | tail``. Bytes are a number that says whose they are: the search compares, it never computes.
What ``sim/memory.py`` says with objects stands here as values, because worlds are compared by the million.
"""

from typing import NamedTuple

from kvfence.core.ids import Incarnation, SessionId

NOTHING = -1
"""Bytes of a page that nobody ever wrote."""

CORRUPT = 0
"""Bytes that a broken transfer or a life before all others left."""

POSITIONS = 16
REQUESTS = 16
DRIFTED = POSITIONS * REQUESTS
"""Added to bytes in another layout."""

HEAD, BYTES, TAIL = range(3)
PARTS = 3
"""The parts of one page's write in address order."""

Tag = tuple[Incarnation, int, int]
"""Life, serial, page: as ``core.tags.PageTag``."""

Stamp = tuple[Tag, int]
"""The tag it was written under and the bytes it vouches for; a digest is these bytes' own number."""


def content(request: int, position: int, *, drifted: bool = False) -> int:
    """Give the bytes of a request's page."""
    return 1 + request * POSITIONS + position + drifted * DRIFTED


def owner(held: int) -> tuple[int, int] | None:
    """Give whose bytes these are, as (request, position); None where they are nobody's."""
    return None if held in (NOTHING, CORRUPT) else divmod((held - 1) % DRIFTED, POSITIONS)


class Cell(NamedTuple):
    """One page. ``slack``: whose bytes lie behind its last token; NOTHING: zeros."""

    head: Tag | None = None
    held: int = NOTHING
    tail: Stamp | None = None
    slack: int = NOTHING

    def landed(self, part: int, source: "Cell", corrupt: bool) -> "Cell":
        """Take one part of a write from the page it is read from now."""
        if part == HEAD:
            return self._replace(head=source.head)
        if part == TAIL:
            return self._replace(tail=source.tail)
        return self._replace(held=CORRUPT if corrupt else source.held, slack=source.slack)


EMPTY = Cell()


class Write(NamedTuple):
    """One page of a posted batch on its way; it reads its source only as it lands.

    ``attempt``: the counter of the attempt. ``live``: its batch has not been given up.
    ``parts``: which parts have landed, a bit each. ``refused``: none will land any more.
    ``source``: the source page, or with a dead writer the page as it was then.
    """

    attempt: int
    writer: Incarnation
    target: Incarnation
    session: SessionId
    page: int
    serial: int
    source: int | Cell
    source_tag: Tag | None
    live: bool = True
    parts: int = 0
    refused: bool = False
    corrupt: bool = False
    misdirected: bool = False

    @property
    def ended(self) -> bool:
        """Has everything landed that ever will?"""
        return self.refused or self.parts == 7

    def next_parts(self, in_order: bool) -> list[int]:
        """Give the parts that may land next."""
        missing = [part for part in range(PARTS) if not self.parts >> part & 1]
        return missing[:1] if in_order else missing
