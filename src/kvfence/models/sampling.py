"""Choose tokens from logits: greedy, or drawn so that a token depends on its logits, seed and index alone.

The draw is one uniform number from a hash of (seed, index), inverted through the distribution: alike on every
device, in every batch, and without a generator's state to hand over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from kvfence.core.request import SamplingParams


def uniform(seed: int, index: int) -> float:
    """Give the number in [0, 1) that belongs to a seed and an index."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def sample(logits: Tensor, params: Sequence[SamplingParams], indexes: Sequence[int]) -> list[int]:
    """Give one token per row of logits.

    Shapes:
        logits: [rows, vocab]; params and indexes: [rows].
    """
    tokens: list[int] = logits.argmax(-1).tolist()
    drawn = [row for row, param in enumerate(params) if param.temperature > 0]
    for row in drawn:
        tokens[row] = _draw(logits[row].float(), params[row], uniform(params[row].seed, indexes[row]))
    return tokens


def _draw(logits: Tensor, params: SamplingParams, at: float) -> int:
    scores = logits / max(params.temperature, 1e-5)
    if params.top_k == 0 and params.top_p >= 1:
        return _invert(scores.softmax(-1), at)
    num_kept = min(params.top_k or len(scores), len(scores))
    values, tokens = scores.topk(num_kept)
    weights = values.softmax(-1)
    if params.top_p < 1:
        before = weights.double().cumsum(-1) - weights
        weights = weights[: max(1, int((before < params.top_p).sum()))]
    return int(tokens[_invert(weights, at)])


def _invert(weights: Tensor, at: float) -> int:
    """Give the first place at which the running sum passes a share of the whole."""
    sums = weights.double().cumsum(-1)
    place = int(torch.searchsorted(sums, sums[-1] * at, right=True))
    return min(place, len(weights) - 1)
