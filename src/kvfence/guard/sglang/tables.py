"""Whether the pages that a pass reads and writes are still those that were granted for it: tables against serials.

A request's table is its row in the engine's own map from tokens to slots. What a pass adds to it is looked at before
the pass; of the rest a bounded part, turn by turn. Whenever a page that stands in a table is granted or given back,
that table is looked at whole before its next pass and before the tokens of the one under way leave; every table, where
the page stands, or stood, in several. All requests of a batch at once; no loop over pages.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvfence.guard.sglang.serials import SEVERAL, PageIds, Serials

SWEEP_PAGES = 4_096
"""Looked at in a pass beside what is new."""

WINDOW_PAGES = 16_384
"""Looked at in one piece where all are, so that a piece stays in a core's own cache."""

Ints = npt.NDArray[np.int64]
Pages = npt.NDArray[np.int32]

_NONE: PageIds = np.zeros(0, dtype=np.int64)


class Slots(Protocol):
    """The engine's map from tokens to slots, an array or what reads like one. Shapes: [rows, tokens]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Give its own."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: Any, /) -> npt.NDArray[np.int32]: ...


class Batch(Struct, frozen=True):
    """What a pass reads and writes: per request its name, its row, and how many of the row's tokens have slots."""

    requests: Sequence[str]
    rows: Ints
    num_tokens: Ints


class Looked(Struct, frozen=True):
    """What was found: which requests of the batch have a page that is not theirs, which pages, how many were read."""

    bad: npt.NDArray[np.bool_]
    pages: PageIds
    num_pages: int


class Tables:
    """One pool's tables.

    Shapes:
        slots: [rows, tokens], the engine's own, which it writes to.
    ``may_change``: the engine replaces pages in a table by equal ones of its cache (prefill's radix cache does).
    """

    def __init__(self, serials: Serials, slots: Slots, page_size: int, *, may_change: bool) -> None:
        self._serials, self._slots, self._page_size, self._may_change = serials, slots, page_size, may_change
        rows, width = len(slots), -(-slots.shape[1] // page_size)
        self._pages = np.zeros((rows, width), dtype=np.int32)
        self._expected = np.zeros((rows, width), dtype=np.int32)
        self._known = np.zeros(rows, dtype=np.int64)
        self._seen = np.full(rows, -1, dtype=np.int64)
        self._owners = [""] * rows
        serials.stale = np.ones(rows, dtype=np.bool_)
        self._cursor = 0
        self._last = serials.last

    def look(self, batch: Batch) -> Looked:
        """Look at a batch's tables before a pass."""
        for request, row in zip(batch.requests, batch.rows.tolist(), strict=True):
            if self._owners[row] != request:
                self.drop(row)
                self._owners[row] = request
        ends = -(-batch.num_tokens // self._page_size)
        for at in np.flatnonzero(self._known[batch.rows] > ends):
            self._shorten(int(batch.rows[at]), int(ends[at]))
        bad, wrong, read = self._take_new(batch.rows, ends)
        found = [wrong]
        for which, columns in self._pieces(batch.rows, ends):
            more = self._compare(batch.rows[which], ends[which], columns)
            bad[which] |= more.bad
            found.append(more.pages)
            read += more.num_pages
        self._last = self._serials.last
        return Looked(bad, np.concatenate(found), read)

    def _pieces(self, rows: Ints, ends: Ints) -> Iterator[tuple[Ints | slice, slice]]:
        """Give which of a batch, and which of their columns, to look at: the sweep's turn, and all of who is stale."""
        stale = np.flatnonzero(self._are_stale(rows))
        turn = _Cut(SWEEP_PAGES, ends)
        if turn.number and len(stale) < len(rows):
            self._cursor = (self._cursor + 1) % turn.number
            yield turn.piece(self._cursor)
        if len(stale):
            self._seen[rows[stale]] = self._serials.alarms
            self._serials.stale[rows[stale]] = False
            cut = _Cut(WINDOW_PAGES, ends[stale])
            for some, columns in map(cut.piece, range(cut.number)):
                yield stale[some], columns

    def _are_stale(self, rows: Ints) -> npt.NDArray[np.bool_]:
        stale: npt.NDArray[np.bool_] = self._serials.stale[rows] | (self._seen[rows] < self._serials.alarms)
        return stale

    def look_again(self, batch: Batch) -> Looked | None:
        """Look at a batch's tables after its pass; None where nothing was granted or given back that stands in one."""
        return self.look(batch) if self._are_stale(batch.rows).any() else None

    def drop(self, row: int) -> None:
        """A request's pages are about to be given back."""
        self._shorten(row, 0)
        self._owners[row] = ""

    def _shorten(self, row: int, end: int) -> None:
        self._unlist(self._pages[row, end : int(self._known[row])])
        self._known[row] = end

    def _take_new(self, rows: Ints, ends: Ints) -> tuple[npt.NDArray[np.bool_], PageIds, int]:
        """Take in what stands in the tables behind what is known: granted, and if granted just now, to one alone."""
        starts = self._known[rows]
        counts = ends - starts
        bad = np.zeros(len(rows), dtype=np.bool_)
        total = int(counts.sum())
        if not total:
            return bad, _NONE, 0
        if total == len(rows) and counts.max() == 1:  # a decode step
            which, columns = np.arange(total), starts
        else:
            which = np.repeat(np.arange(len(rows)), counts)
            columns = np.arange(total) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        at = rows[which]
        pages = self._slots[at, columns * self._page_size] // self._page_size
        serials, twice = self._serials.serial.take(pages.astype(np.intp)), _twice(pages)
        self._pages[at, columns], self._expected[at, columns] = pages, serials
        self._known[rows] = ends
        self._list(pages, twice, at)
        wrong = serials <= 0
        if len(twice):
            wrong |= (serials > self._last) & np.isin(pages, twice)
        if not wrong.any():
            return bad, _NONE, total
        bad[which[wrong]] = True
        return bad, pages[wrong].astype(np.int64), total

    def _list(self, pages: Pages, twice: Pages, rows: Ints) -> None:
        """Note in whose tables pages stand from now on."""
        _add(self._serials.listed, pages, twice, 1)
        self._serials.row[pages] = rows

    def _unlist(self, pages: Pages) -> None:
        """Note that pages stand in one table less each; whose the others are is not remembered."""
        _add(self._serials.listed, pages, _twice(pages), -1)
        self._serials.row[pages] = SEVERAL

    def _compare(self, rows: Ints, ends: Ints, columns: slice) -> Looked:
        start, end = columns.start, columns.stop
        pages = self._slots[rows, start * self._page_size : end * self._page_size : self._page_size]
        if self._page_size > 1:
            pages = pages // self._page_size
        serials, known = self._serials.serial.take(pages.astype(np.intp)), self._pages[rows, columns]
        holds = serials == self._expected[rows, columns]
        holds &= pages == known
        lengths = np.minimum(np.maximum(ends - start, 0), end - start)
        read = int(lengths.sum())
        if holds.all():
            return Looked(np.zeros(len(rows), dtype=np.bool_), _NONE, read)
        wrong = ~holds & (np.arange(end - start) < lengths[:, None])
        if self._may_change:
            changed = wrong & (pages != known) & (serials > 0)
            self._change(rows, np.nonzero(changed), start, pages[changed])
            wrong &= ~changed
        return Looked(wrong.any(axis=1), pages[wrong].astype(np.int64), read)

    def _change(self, rows: Ints, where: tuple[Ints, ...], start: int, pages: npt.NDArray[np.int32]) -> None:
        at, columns = rows[where[0]], where[1] + start
        self._unlist(self._pages[at, columns])
        self._list(pages, _twice(pages), at)
        self._pages[at, columns], self._expected[at, columns] = pages, self._serials.serial[pages]


def _add(counts: Pages, pages: Pages, twice: Pages, by: int) -> None:
    """Count pages; each by itself is slow, and needed only where one is named twice."""
    if len(twice):
        np.add.at(counts, pages, by)
    else:
        counts[pages] += by


def _twice(pages: Pages) -> Pages:
    """Give the pages that are named more than once."""
    ordered: Pages = np.sort(pages)
    twice: Pages = ordered[1:][ordered[1:] == ordered[:-1]]
    return twice


class _Cut:
    """A batch's tables in pieces of at most so many pages: as few of its requests, and as long a run, as will do.

    A run of one table lies together in memory; a few columns of every table would be fetched from as many places.
    """

    def __init__(self, num_pages: int, ends: Ints) -> None:
        self._longest = int(ends.max(initial=0))
        self._width = max(1, min(self._longest, num_pages))
        self._height = max(1, num_pages // self._width)
        self._across = -(-self._longest // self._width)
        self.number = self._across * -(-len(ends) // self._height)

    def piece(self, number: int) -> tuple[slice, slice]:
        """Give which requests, and which columns of theirs."""
        down, across = divmod(number, self._across)
        top, left = down * self._height, across * self._width
        return slice(top, top + self._height), slice(left, min(left + self._width, self._longest))
