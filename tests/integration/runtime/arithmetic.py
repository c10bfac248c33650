"""A model that is plain arithmetic over the pages it is given, so that any foreign byte in them changes its tokens.

It starts in a fraction of a second, for neither torch nor transformers is imported. Not for: what a real model does
(``test_greedy_equality.py``).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvfence.core.layout import KVLayout, Segment
from kvfence.kv.storage import PoolBuffer
from kvfence.models.executor import Executor, PassRow

VOCAB = 50_021
CONTEXT = 512
PAGE_SIZE = 16
WIDTH = 512
NAMES = ("key", "value", "latent")
EOS = 2

Views = list[npt.NDArray[np.float32]]


def arithmetic_layout(page_size: int = PAGE_SIZE) -> KVLayout:
    """Give a layout whose records are written in four parts: head, 64 KiB, 32 KiB, tail."""
    return KVLayout(page_size, tuple(Segment(name, 0, (WIDTH,), "float32") for name in NAMES))


def arithmetic_views(pool: PoolBuffer, layout: KVLayout) -> Views:
    """View each segment of all pages as one strided array. Shapes: [num_pages, page_size, WIDTH] each."""
    shape = (pool.num_pages, layout.page_size, WIDTH)
    strides = (layout.record_bytes, 4 * WIDTH, 4)
    flat = pool.records.reshape(-1)
    return [np.ndarray(shape, np.float32, flat.data, offset, strides) for offset in layout.offsets]


def expected_tokens(prompt: Sequence[int], num_new: int) -> list[int]:
    """Give what the model generates where every byte it reads is its sequence's own."""
    history = list(prompt)
    total = sum((position + 1) * (token + 1) for position, token in enumerate(history))
    for _ in range(num_new):
        history.append(total % VOCAB)
        total += len(history) * (history[-1] + 1)
    return history[len(prompt) :]


class ArithmeticExecutor(Executor):
    """Writes each token into every float of its slot; the next token is a weighted sum of all it reads back."""

    def __init__(self, page_size: int = PAGE_SIZE) -> None:
        self._layout = arithmetic_layout(page_size)
        self._views: Views = []

    @property
    def layout(self) -> KVLayout:
        """The layout above."""
        return self._layout

    @property
    def context_tokens(self) -> int:
        """A small context."""
        return CONTEXT

    @property
    def vocab_size(self) -> int:
        """A prime."""
        return VOCAB

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """One token ends a sequence."""
        return frozenset({EOS})

    @property
    def weight_bytes(self) -> int:
        """No weights."""
        return 0

    def bind(self, views: Views) -> None:
        """Take the pool."""
        self._views = views

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Run one pass."""
        for row in rows:
            for position, token in enumerate(row.token_ids, row.start):
                page, slot = row.pages[position // self._layout.page_size], position % self._layout.page_size
                for view in self._views:
                    view[page, slot] = token + 1
        return [None if row.sampling is None or _breaks(row) else self._next(row) for row in rows]

    def _next(self, row: PassRow) -> int:
        num_tokens = row.start + len(row.token_ids)
        weights = np.arange(1, num_tokens + 1, dtype=np.float64)
        pages = np.asarray(row.pages, dtype=np.intp)
        total = 0.0
        for view in self._views:
            slots = view[pages].reshape(-1, WIDTH)[:num_tokens].sum(axis=1, dtype=np.float64)
            total += float(np.nan_to_num(weights @ slots, posinf=0.0, neginf=0.0))
        return int(total / (WIDTH * len(self._views))) % VOCAB


def _breaks(row: PassRow) -> bool:
    """Can no token be chosen? Where a sampler is broken, and at index ``min_tokens`` of a sequence that has one."""
    return row.sampler is not None and (row.sampler.broken or 0 < row.sampler.params.min_tokens == row.sample_index)
