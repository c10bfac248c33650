"""What choosing the next token of one sequence needs beyond its logits, seed and index. No torch.

Only sequences that ask for log probabilities, penalties, biases, a least length or a grammar have one. It is made of
what travels (parameters and ``Past``), so that it is the same after a hand-off and after a preemption.
Not for: the arithmetic (``sampling.py``).
"""

from __future__ import annotations

from collections import Counter

from kvfence.core.request import Past, SamplingParams, TokenLogprob, without_content
from kvfence.models.grammar import Matcher


class Sampler:
    """The state of one sequence's choices.

    Owner:
        Whoever made it, until a pass takes it; during the pass the model's thread.
    """

    def __init__(self, params: SamplingParams, past: Past, ends: frozenset[int]) -> None:
        self.params = params
        self.ends = sorted(ends | set(params.stop_token_ids))
        self.counts = Counter(past.answer)
        self.prompt = past.prompt
        self.matcher: Matcher | None = None
        self.ready = not params.grammar
        self.logprob: TokenLogprob | None = None

    __repr__ = without_content

    @property
    def complete(self) -> bool:
        """Does the grammar allow nothing more?"""
        return self.matcher is not None and self.matcher.complete

    @property
    def broken(self) -> bool:
        """Can the grammar choose nothing, because it could not be compiled or followed?"""
        return bool(self.params.grammar) and (self.matcher is None or self.matcher.broken)

    def take(self, token_id: int) -> None:
        """Note a chosen token."""
        if self.params.reads_answer:
            self.counts[token_id] += 1
        if self.matcher is not None:
            self.matcher.take((token_id,))
