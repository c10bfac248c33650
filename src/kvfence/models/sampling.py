"""Choose tokens from logits: greedy, or drawn so that a token depends on its logits, seed and index alone.

The draw is one uniform number from a hash of (seed, index), inverted through the distribution: alike on every
device, in every batch, and without a generator's state to hand over. Rows with a sampler are chosen one by one; the
others pay nothing for them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvfence.core.request import SamplingParams, TokenLogprob
from kvfence.models.sampler import Sampler


def uniform(seed: int, index: int) -> float:
    """Give the number in [0, 1) that belongs to a seed and an index."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    indexes: Sequence[int],
    samplers: Sequence[Sampler | None] = (),
) -> list[int | None]:
    """Give one token per row of logits; None where a grammar leaves nothing to choose.

    Shapes:
        logits: [rows, vocab]; params and indexes: [rows]; samplers: [rows], or none at all.
    """
    tokens: list[int | None] = logits.argmax(-1).tolist()
    drawn = [row for row, param in enumerate(params) if param.temperature > 0]
    steered = {row: sampler for row, sampler in enumerate(samplers) if sampler is not None}
    for row in drawn:
        if row not in steered:
            tokens[row] = _draw(logits[row].float(), params[row], uniform(params[row].seed, indexes[row]))
    for row, sampler in steered.items():
        tokens[row] = _steer(logits[row].float(), sampler, indexes[row])
    return tokens


def _steer(logits: Tensor, sampler: Sampler, index: int) -> int | None:
    """Choose by a sampler: biases, then what is forbidden, then penalties, then temperature and cuts."""
    params = sampler.params
    scores = _adjust(logits.clone(), sampler, index)
    best = int(scores.argmax())
    if sampler.broken or scores[best] == -torch.inf:
        return None
    token = best if params.temperature == 0 else _draw(scores, params, uniform(params.seed, index))
    sampler.logprob = None if params.logprobs is None else _logprob(logits, token, params.logprobs)
    sampler.take(token)
    return token


def _adjust(scores: Tensor, sampler: Sampler, index: int) -> Tensor:
    params = sampler.params
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        scores[list(ids)] += scores.new_tensor(values)
    if index < params.min_tokens:
        scores[sampler.ends] = -torch.inf
    if sampler.matcher is not None and not sampler.broken:
        scores[~_allowed(sampler.matcher.mask(), len(scores)).to(scores.device)] = -torch.inf
    if params.repetition_penalty != 1:
        _repel(scores, sampler)
    if (params.presence_penalty or params.frequency_penalty) and sampler.counts:
        counts = scores.new_tensor(list(sampler.counts.values()))
        scores[list(sampler.counts)] -= params.presence_penalty + params.frequency_penalty * counts
    return scores


def _repel(scores: Tensor, sampler: Sampler) -> None:
    """Shrink the logits of tokens seen in the prompt or the answer, once each, towards being unlikely."""
    seen = sorted({*sampler.prompt, *sampler.counts})
    if seen:
        values, penalty = scores[seen], sampler.params.repetition_penalty
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)


def _allowed(mask: bytes, num_tokens: int) -> Tensor:
    """Unpack a mask. Shapes: [num_tokens] of bool; tokens beyond the mask are not allowed."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:num_tokens].astype(bool)
    return torch.from_numpy(np.pad(bits, (0, num_tokens - len(bits))))


def _logprob(logits: Tensor, token: int, num_top: int) -> TokenLogprob:
    """Give the log probability of a token by the raw logits, before anything above changed them."""
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(num_top, len(logprobs)))
    return TokenLogprob(float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


def _draw(logits: Tensor, params: SamplingParams, at: float) -> int:
    scores = logits / max(params.temperature, 1e-5)
    if params.min_p > 0:
        scores[scores < scores.max() + math.log(params.min_p)] = -torch.inf
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
