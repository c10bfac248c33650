"""The seam between the runtime and a model: one forward pass over a mixed batch of rows.

No torch at import. Read next: ``transformer.py`` (the real one).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from kvfence.core.layout import KVLayout
from kvfence.core.request import SamplingParams, without_content
from kvfence.models.sampler import Sampler

if TYPE_CHECKING:
    from torch import Tensor


class PassRow(Struct, frozen=True):
    """New tokens of one sequence in one pass: a chunk of its prompt, or the one token decoded last.

    Shapes:
        token_ids: the new tokens only, at least one.
        pages: pool indices in order, covering exactly the positions 0 .. start + len(token_ids) - 1.
    Units:
        start: position of the first new token.
        sample_index: index of the token to be generated within its sequence.
        sampler: what choosing needs beyond that; None where ``sampling.is_plain``. The pass changes it.
    Owner:
        The caller holds every page; those that receive new tokens are GRANTED to it.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    sampling: SamplingParams | None = None
    sample_index: int = 0
    sampler: Sampler | None = None

    __repr__ = without_content


class Executor(Protocol):
    """A loaded model that reads and writes K and V only through the pages its rows name."""

    @property
    def layout(self) -> KVLayout:
        """How one page's bytes lie; known before ``bind``."""
        ...

    @property
    def context_tokens(self) -> int:
        """The longest sequence, prompt and generated tokens together."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in memory."""
        ...

    def bind(self, views: list[Tensor]) -> None:
        """Take the pool.

        Shapes:
            views: one per ``layout.segments``, [num_pages, page_size, *segment.shape], page stride record_bytes.
        Owner:
            The caller keeps the memory alive for the executor's life.
        """
        ...

    def run(self, rows: Sequence[PassRow]) -> list[int | None]:
        """Run one forward pass, write the new K and V, and give a token for each row that has ``sampling``.

        Returns:
            One entry per row, in the rows' order; None where no token was asked for, or none can be chosen.
        Raises:
            InvariantBroken: a row without tokens or whose pages do not cover it: a bug in the caller.
        """
        ...
