"""The practice model: it writes each token into its page and answers with tokens that it reads back out of pages.

A pass takes well below a millisecond, and only its pace is a model's. What it reads in a page that another sequence
filled is that sequence's text, word for word. Read next: ``speech.py``, what it says. Not for: sampling; an answer does
not depend on temperature or seed.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvfence.core.layout import KVLayout, Segment
from kvfence.core.request import TokenLogprob
from kvfence.kv.storage import PoolBuffer
from kvfence.models.executor import PassRow
from kvfence.ranges.pieces import END, VOCAB_SIZE
from kvfence.ranges.speech import what_to_say

Slots = npt.NDArray[np.uint32]

NAME = "practice"
SLOT_BYTES = 4
_LOGPROB = -0.01


class Pace(Struct, frozen=True):
    """How fast it pretends to be. Units: tokens a second, of all prompts and of each answer; 0: as fast as it is."""

    prefill: float = 20_000
    decode: float = 500


class PracticeExecutor:
    """Implements ``models.executor.Executor`` on slots of four bytes. Units: context_tokens as it is told."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset({END})
    weight_bytes = 0

    def __init__(self, page_size: int, context_tokens: int, pace: Pace) -> None:
        self.layout = KVLayout(page_size, (Segment("token", 0, (SLOT_BYTES,), "uint8"),))
        self.context_tokens = context_tokens
        self._pace = pace
        self._slots: Slots = np.empty((0, page_size), np.uint32)

    def bind(self, views: list[Any]) -> None:
        """Take the pool's one view. Shapes: [num_pages, page_size]."""
        (self._slots,) = views

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Write every row's tokens, then answer from what the pages hold."""
        self._keep_pace(rows)
        for row in rows:
            positions = np.arange(row.start, row.start + len(row.token_ids))
            pages = np.asarray(row.pages)[positions // self.layout.page_size]
            self._slots[pages, positions % self.layout.page_size] = row.token_ids
        return [None if row.sampling is None else self._answer(row) for row in rows]

    def _keep_pace(self, rows: Sequence[PassRow]) -> None:
        num_prompt = sum(len(row.token_ids) for row in rows if len(row.token_ids) > 1)
        wait_s = num_prompt / self._pace.prefill if self._pace.prefill else 0.0
        if self._pace.decode and any(len(row.token_ids) == 1 for row in rows):
            wait_s += 1 / self._pace.decode
        time.sleep(wait_s)

    def _answer(self, row: PassRow) -> int | None:
        read = self._slots[np.asarray(row.pages)].reshape(-1)[: row.start + len(row.token_ids)]
        said = what_to_say(read[: len(read) - row.sample_index].tobytes())
        kept_going = row.sampling is not None and (
            row.sampling.ignore_eos or row.sample_index < row.sampling.min_tokens
        )
        token = said.token(row.sample_index, goes_on=kept_going)
        if row.sampler is not None:
            if row.sampler.broken:
                return None
            row.sampler.logprob = TokenLogprob(_LOGPROB, [(token, _LOGPROB)][: row.sampler.params.logprobs or 0])
            row.sampler.take(token)
        return token


def slot_views(pool: PoolBuffer, layout: KVLayout) -> list[Slots]:
    """View the slots of all pages as numbers, without a copy. Shapes: [num_pages, page_size]."""
    shape, strides = (pool.num_pages, layout.page_size), (layout.record_bytes, SLOT_BYTES)
    return [np.ndarray(shape, np.uint32, pool.records.reshape(-1).data, layout.offsets[0], strides)]
