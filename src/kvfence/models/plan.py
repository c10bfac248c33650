"""Where one pass reads and writes: rows become index tensors, once per pass and shared by all layers.

Decode rows (one new token) come first in the packed order, grouped by length so that padding at most doubles a
gather; then one span per prefill chunk. A row's gather touches its own pages only: padding repeats its first page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kvfence.core.invariant import require
from kvfence.models.executor import PassRow
from kvfence.models.native import Reads


class DecodeGroup:
    """Rows with one new token each and similar length, attended together.

    Shapes:
        begin, end: their packed token positions.
        reads(window): the pages and slots attended; mask(window): [rows, 1, 1, pages * page_size], True where attended.
    """

    def __init__(self, begin: int, rows: Sequence[PassRow], page_size: int, device: torch.device) -> None:
        self.begin, self.end = begin, begin + len(rows)
        self._rows, self._page_size, self._device = rows, page_size, device
        self._reads: dict[int, Reads] = {}
        self._masks: dict[int, Tensor] = {}

    def reads(self, window: int) -> Reads:
        """Give the pages that a window of this many tokens touches, and which of their slots count."""
        if window not in self._reads:
            self._reads[window] = self._build(window)
        return self._reads[window]

    def mask(self, window: int) -> Tensor:
        """Give the same slots as a mask over the gathered pages."""
        if window not in self._masks:
            table, bounds = self.reads(window)
            slots = torch.arange(table.shape[1] * self._page_size, device=self._device)[None]
            self._masks[window] = ((slots >= bounds[:, :1]) & (slots < bounds[:, 1:]))[:, None, None]
        return self._masks[window]

    def _build(self, window: int) -> Reads:
        size, rows = self._page_size, self._rows
        ends = np.array([row.start + 1 for row in rows])
        begins = np.maximum(ends - window, 0) if window else np.zeros_like(ends)
        first = begins // size
        width = int((-(-ends // size) - first).max())
        table = np.empty((len(rows), width), np.int64)
        for index, row in enumerate(rows):
            pages = row.pages[first[index] :]
            table[index] = row.pages[first[index]]
            table[index, : len(pages)] = pages
        bounds = np.stack((begins, ends), 1) - first[:, None] * size
        return Reads(torch.from_numpy(table).to(self._device), torch.from_numpy(bounds).to(self._device))


class Span:
    """One prefill chunk: packed tokens begin .. end at positions start .. stop of its sequence.

    Shapes:
        pages: [pages], all that hold positions 0 .. stop - 1.
        mask(window): [end - begin, stop], True where attended.
    """

    def __init__(self, begin: int, row: PassRow, device: torch.device) -> None:
        self.begin, self.end = begin, begin + len(row.token_ids)
        self.start, self.stop = row.start, row.start + len(row.token_ids)
        self.pages = torch.tensor(row.pages, device=device)
        self._masks: dict[int, Tensor] = {}

    def mask(self, window: int) -> Tensor:
        """Give the causal mask of the chunk over its whole context, limited to a window."""
        if window not in self._masks:
            query = torch.arange(self.start, self.stop, device=self.pages.device)[:, None]
            key = torch.arange(self.stop, device=self.pages.device)[None]
            mask = key <= query
            self._masks[window] = mask & (query - key < window) if window else mask
        return self._masks[window]

    def is_plain_causal(self, window: int) -> bool:
        """Tell whether the chunk attends to its own tokens alone, all of them before each."""
        return self.start == 0 and (not window or self.stop <= window)


class PassPlan:
    """The index tensors of one pass.

    Shapes:
        order: row index at each place in the packed order.
        input_ids, positions: [1, tokens]; write_pages, write_slots: [tokens].
        fresh: [pages], begun but not filled in this pass: zeroed first, so that bytes of a former use
            cannot reach a softmax even where masked (zero times NaN is NaN).
        logit_tokens: [sampled rows], packed positions whose logits are wanted; sampled: the rows, in that order.
    """

    def __init__(self, rows: Sequence[PassRow], page_size: int, device: torch.device) -> None:
        for row in rows:
            _check_row(row, page_size)
        decode = sorted((i for i, row in enumerate(rows) if len(row.token_ids) == 1), key=lambda i: rows[i].start)
        prefill = [i for i, row in enumerate(rows) if len(row.token_ids) > 1]
        self.order = decode + prefill
        self._packed = [rows[i] for i in self.order]
        self._page_size, self._device = page_size, device
        self._pack(self._packed)
        self.groups = self._group([rows[i] for i in decode])
        self.spans: list[Span] = []
        at = len(decode)
        for i in prefill:
            self.spans.append(Span(at, rows[i], device))
            at = self.spans[-1].end

    @cached_property
    def context_spans(self) -> list[Span]:
        """Every row as a span, for models that expand a gathered context before they attend."""
        spans: list[Span] = []
        for row in self._packed:
            spans.append(Span(spans[-1].end if spans else 0, row, self._device))
        return spans

    @cached_property
    def context_slots(self) -> tuple[Tensor, Tensor]:
        """Page and slot of every token of every row's whole context, packed. Shapes: [context tokens] each."""
        tokens = [np.arange(row.start + len(row.token_ids)) for row in self._packed]
        pages = [
            np.asarray(row.pages, np.int64)[at // self._page_size] for row, at in zip(self._packed, tokens, strict=True)
        ]
        slots = np.concatenate(tokens) % self._page_size
        return torch.from_numpy(np.concatenate(pages)).to(self._device), torch.from_numpy(slots).to(self._device)

    def _pack(self, rows: Sequence[PassRow]) -> None:
        size, device = self._page_size, self._device
        lengths = np.array([len(row.token_ids) for row in rows])
        positions = np.concatenate([np.arange(row.start, row.start + len(row.token_ids)) for row in rows])
        pages = [
            np.asarray(row.pages, np.int64)[np.arange(row.start, row.start + len(row.token_ids)) // size]
            for row in rows
        ]
        ids = np.concatenate([np.asarray(row.token_ids, np.int64) for row in rows])
        last = np.cumsum(lengths) - 1
        wanted = [place for place, row in enumerate(rows) if row.sampling is not None]
        fresh = [row.pages[-1] for row in rows if _begins_partial_page(row, size)]
        self.input_ids = torch.from_numpy(ids)[None].to(device)
        self.positions = torch.from_numpy(positions)[None].to(device)
        self.write_pages = torch.from_numpy(np.concatenate(pages)).to(device)
        self.write_slots = torch.from_numpy(positions % size).to(device)
        self.fresh = torch.tensor(fresh, dtype=torch.int64, device=device)
        self.logit_tokens = torch.from_numpy(last[wanted]).to(device)
        self.sampled = [self.order[place] for place in wanted]

    def _group(self, rows: Sequence[PassRow]) -> list[DecodeGroup]:
        groups: list[DecodeGroup] = []
        begin = 0
        for place in range(1, len(rows) + 1):
            if place == len(rows) or len(rows[place].pages).bit_length() != len(rows[begin].pages).bit_length():
                groups.append(DecodeGroup(begin, rows[begin:place], self._page_size, self._device))
                begin = place
        return groups


def _check_row(row: PassRow, page_size: int) -> None:
    stop = row.start + len(row.token_ids)
    require(len(row.token_ids) >= 1 and row.start >= 0, "a row has at least one new token")
    require(len(row.pages) == -(-stop // page_size), "a row's pages cover its tokens exactly")


def _begins_partial_page(row: PassRow, page_size: int) -> bool:
    stop = row.start + len(row.token_ids)
    return stop % page_size != 0 and row.start <= stop - stop % page_size
