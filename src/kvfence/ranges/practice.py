"""The practice model: it writes each token into its page and answers with tokens that it reads back out of pages.

It repeats what it was asked to repeat, or its last message; a pass takes well below a millisecond, and only its pace
is a model's. What it reads in a page that another sequence filled is that sequence's text, word for word.
Not for: sampling; an answer does not depend on temperature or seed.
"""

import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvfence.core.layout import KVLayout, Segment
from kvfence.core.request import TokenLogprob
from kvfence.kv.storage import PoolBuffer
from kvfence.models.executor import PassRow
from kvfence.ranges.pieces import BOT, EMPTY, END, SYSTEM, USER, VOCAB_SIZE, piece_bytes

Slots = npt.NDArray[np.int64]

NAME = "practice"
SLOT_BYTES = 8
LOST_TOKENS = 128
"""How much of the end is repeated of a prompt that does not end as prompts do."""

ASKED_TOKENS = 64
"""How far from either end of a message the words that ask for a repetition may stand."""

_ASKS = re.compile(rb"\b(?:repeat|copy|echo|say|write|reply|answer|respond|print|output)\b[^:.!?\n]*:", re.IGNORECASE)
_LOGPROB = -0.01


class Pace(Struct, frozen=True):
    """How fast it pretends to be. Units: tokens a second, of all prompts and of each answer; 0: as fast as it is."""

    prefill: float = 20_000
    decode: float = 500


class PracticeExecutor:
    """Implements ``models.executor.Executor`` on slots of eight bytes. Units: context_tokens as it is told."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset({END})
    weight_bytes = 0

    def __init__(self, page_size: int, context_tokens: int, pace: Pace) -> None:
        self.layout = KVLayout(page_size, (Segment("token", 0, (SLOT_BYTES,), "uint8"),))
        self.context_tokens = context_tokens
        self._pace = pace
        self._slots: Slots = np.empty((0, page_size), np.int64)

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
        text = text_to_repeat(read[: len(read) - row.sample_index].tobytes())
        goes_on = row.sampling is not None and (row.sampling.ignore_eos or row.sample_index < row.sampling.min_tokens)
        index = row.sample_index % max(1, len(text)) if goes_on else row.sample_index
        token = text[index] if index < len(text) else END
        if row.sampler is not None:
            if row.sampler.broken:
                return None
            row.sampler.logprob = TokenLogprob(_LOGPROB, [(token, _LOGPROB)][: row.sampler.params.logprobs or 0])
            row.sampler.take(token)
        return token


def slot_views(pool: PoolBuffer, layout: KVLayout) -> list[Slots]:
    """View the slots of all pages as numbers, without a copy. Shapes: [num_pages, page_size]."""
    shape, strides = (pool.num_pages, layout.page_size), (layout.record_bytes, SLOT_BYTES)
    return [np.ndarray(shape, np.int64, pool.records.reshape(-1).data, layout.offsets[0], strides)]


# ---- what it answers -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def text_to_repeat(prompt: bytes) -> list[int]:
    """Give what a prompt, as it was read, makes this model say: a function of those tokens and nothing else.

    The last message, or of it what stands behind words that ask for a repetition and a colon. A prompt that holds
    messages and does not end with the answer's opening has lost its end: then its last tokens, whosever they are.
    """
    tokens = [token for token in np.frombuffer(prompt, np.int64).tolist() if token != EMPTY]
    named = [at for at, token in enumerate(tokens) if token <= END]
    if named and tokens[-1] != BOT:
        return [token for token in tokens if token > END][-LOST_TOKENS:]
    return _asked(_last_message(tokens)) or [token for token in tokens if token > END]


def _last_message(tokens: list[int]) -> list[int]:
    begin = max((at + 1 for at, token in enumerate(tokens) if token in (USER, SYSTEM)), default=0)
    end = next((at for at in range(begin, len(tokens)) if tokens[at] in (END, BOT)), len(tokens))
    return tokens[begin:end]


def _asked(message: list[int]) -> list[int]:
    """Give what is to be repeated: behind the request at the end of a long message, else behind the first; else all."""
    if len(message) > ASKED_TOKENS:
        end = message[-ASKED_TOKENS:]
        asks = list(_ASKS.finditer(_text(end)))
        if asks:
            return _behind(end, asks[-1].end())
    asked = _ASKS.search(_text(message[:ASKED_TOKENS]))
    return message if asked is None else _behind(message, asked.end())


def _text(tokens: list[int]) -> bytes:
    return b"".join(map(piece_bytes, tokens))


def _behind(tokens: list[int], num_bytes: int) -> list[int]:
    """Give the tokens behind so many bytes; all of them where none is left."""
    num_seen = 0
    for at, token in enumerate(tokens):
        num_seen += len(piece_bytes(token))
        if num_seen >= num_bytes:
            return tokens[at + 1 :] or tokens
    return tokens
