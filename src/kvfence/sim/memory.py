"""Pages as symbols: whose bytes lie where, and one-sided writes that land part by part.

Not for: deciding anything. A cell says what a page holds; nobody here asks whether it should.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from kvfence.core.ids import AttemptId, BatchId, Incarnation, RequestId, SessionId, TenantId
from kvfence.core.manifest import Manifest
from kvfence.core.tags import PageStamp, PageTag

HALVES = 2
"""A body lands in this many parts, so that it can be torn."""

PARTS = HALVES + 2
"""The parts of one page's write in address order: head, halves of the body, tail."""


class Written(Struct, frozen=True):
    """Whose bytes these are: page ``position`` of a request's sequence, in the writer's layout.

    ``content``: what the tokens up to here are; the same for requests whose prompts begin alike.
    """

    request: RequestId
    tenant: TenantId
    position: int
    kind: Literal["prompt", "generated"]
    layout: str
    content: str = ""


CORRUPT = Written(RequestId("nobody"), TenantId("nobody"), -1, "prompt", "")
"""Bytes that a broken transfer left."""


class Cell:
    """One page: its head, its body in halves, what lies behind the last valid token, its tail."""

    def __init__(self) -> None:
        self.head: PageTag | None = None
        self.body: list[Written | None] = [None] * HALVES
        self.slack: Written | None = None
        self.tail: PageStamp | None = None

    def digest(self) -> bytes:
        """Give 16 bytes that differ whenever the body or its unused slots do."""
        return hashlib.blake2b(repr((self.body, self.slack)).encode(), digest_size=16).digest()

    def fill(self, written: Written, *, whole: bool) -> None:
        """Write the body; in a page that is not full the last bytes of its former use stay behind."""
        if not whole and self.body[-1] is not None and self.body[-1].request != written.request:
            self.slack = self.body[-1]
        elif whole:
            self.slack = None
        self.body = [written] * HALVES

    def seal(self, tag: PageTag, num_tokens: int, *, zero: bool) -> bool:
        """Zero the unused slots, stamp what is there, and say whether nothing stale lies in them."""
        if zero:
            self.slack = None
        self.tail = PageStamp(tag, num_tokens, self.digest())
        return self.slack is None

    def frozen(self) -> "Cell":
        """Give a copy of the page as it is now."""
        copy = Cell()
        copy.head, copy.body, copy.slack, copy.tail = self.head, list(self.body), self.slack, self.tail
        return copy

    def land(self, part: int, source: "Cell", *, corrupt: bool) -> None:
        """Take one part of a write from the page it is read from now."""
        if part == 0:
            self.head = source.head
        elif part == PARTS - 1:
            self.tail = source.tail
        else:
            self.body[part - 1] = CORRUPT if corrupt else source.body[part - 1]
            if part == HALVES:
                self.slack = source.slack


class Memory:
    """The pages of one pool. Never cleared: what a page held stays until somebody writes over it."""

    def __init__(self, num_pages: int) -> None:
        self.cells = [Cell() for _ in range(num_pages)]

    def __getitem__(self, page: int) -> Cell:
        return self.cells[page]

    def __len__(self) -> int:
        return len(self.cells)

    def mismatches(self, expected: Sequence[tuple[int, PageTag | None]]) -> set[int]:
        """Give the pages whose heads are not the expected ones."""
        return {page for page, tag in expected if self.cells[page].head != tag}

    def verify(self, pages: Sequence[int], manifest: Manifest, num_tokens: int) -> "Verdict":
        """Compare heads, tails and digests with what was promised."""
        del num_tokens  # the manifest's digest covers it
        bad, stamps, sound = [], [], True
        for index, page in enumerate(pages):
            cell, origin = self.cells[page], manifest.origin_tag(index)
            stamp = cell.tail
            if stamp is None or origin is None or cell.head != origin or stamp.origin != origin:
                bad.append(page)
            sound = sound and stamp is not None and cell.digest() == stamp.digest
            stamps += [stamp] if stamp is not None else []
        return Verdict(tuple(bad), sound and self.digest_of(stamps) == manifest.digest)

    def digest_of(self, stamps: Sequence[PageStamp]) -> str:
        """Give one digest over the ordered stamps."""
        return hashlib.blake2b(repr(list(stamps)).encode(), digest_size=16).hexdigest()


class Verdict(Struct, frozen=True):
    """What a verification found. ``bad``: pages whose head or tail is another's. ``sound``: digests are as promised."""

    bad: tuple[int, ...]
    sound: bool


class PageWrite:
    """One page of a posted batch on its way; it reads its source only as it lands.

    ``source_tag``: the use of the source page it was posted for. ``drawn``: its faults have been chosen.
    ``misdirected``: a fault sent it elsewhere. ``stops_at``: the part before which it stops for ever.
    """

    def __init__(self, attempt: AttemptId, batch: BatchId, target: "Target", source: Cell) -> None:
        self.attempt = attempt
        self.batch = batch
        self.target = target
        self.source = source
        self.source_tag = source.head
        self.next_part = 0
        self.drawn = False
        self.misdirected = False
        self.corrupt = False
        self.stops_at: int | None = None
        self.refused = False

    @property
    def stalled(self) -> bool:
        """Does it go on only when somebody makes it?"""
        return self.stops_at is not None and self.next_part >= self.stops_at

    @property
    def ended(self) -> bool:
        """Has its last part landed, or will none land any more?"""
        return self.refused or self.next_part == PARTS


class Target(Struct):
    """Where a write goes: a page of one life of a pool, under one grant, through one session."""

    writer: Incarnation
    decode: Incarnation
    session: SessionId
    grant_serial: int
    page: int


class PagePicture(Struct, frozen=True):
    """What one page shows: the use it is granted for, and whose bytes lie in it."""

    page: int
    serial: int
    head: PageTag | None
    held: tuple[Written | None, ...]
