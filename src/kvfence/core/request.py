"""What a client asked for, once it is token ids."""

from collections.abc import Sequence

from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId


def without_content(value: object) -> str:
    """Give a repr that names the kind alone: for values that hold token ids, wherever they may be printed."""
    return f"{type(value).__name__}(...)"


class SamplingParams(Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen.

    Shapes:
        logit_bias: pairs of token id and what is added to its logit.
    Units:
        temperature: 0 is greedy. top_p: 0 < top_p <= 1. top_k: 0 is off. min_p: share of the likeliest token's
            probability below which a token is dropped; 0 is off.
        seed: the token at index i depends on (seed, i) alone; the gateway draws one where the client gave none.
        min_tokens: before so many tokens no end is chosen. logprobs: alternatives to report with each token; None: no
            log probabilities at all. grammar: what the answer must match, as ``models/grammar.py`` writes it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    grammar: str = ""

    __repr__ = without_content

    @property
    def reads_answer(self) -> bool:
        """Does the choice depend on the tokens generated before?"""
        return bool(self.presence_penalty or self.frequency_penalty or self.grammar) or self.reads_prompt

    @property
    def reads_prompt(self) -> bool:
        """Does the choice depend on which tokens the prompt has?"""
        return self.repetition_penalty != 1.0

    @property
    def is_plain(self) -> bool:
        """Is nothing asked for that needs a sampler (``models/sampler.py``)?"""
        return self.logprobs is None and not (self.reads_answer or self.min_tokens or self.logit_bias)


class Past(Struct, frozen=True, omit_defaults=True):
    """What choices read of earlier tokens; it travels with a hand-off, and is empty where nothing is read.

    Shapes:
        answer: the tokens generated before, in order. prompt: the distinct tokens of the prompt.
    """

    answer: list[int] = []
    prompt: list[int] = []

    __repr__ = without_content


def past_of(params: SamplingParams, token_ids: Sequence[int], num_generated: int) -> Past:
    """Give what choices will read of a prompt whose last ``num_generated`` tokens an earlier attempt generated."""
    border = len(token_ids) - num_generated
    answer = list(token_ids[border:]) if params.reads_answer else []
    return Past(answer, sorted(set(token_ids[:border])) if params.reads_prompt else [])


class TokenLogprob(Struct, frozen=True, array_like=True):
    """How likely a generated token was by the model's own logits, and the likeliest tokens in its place.

    Shapes:
        top: pairs of token id and log probability, likeliest first.
    """

    logprob: float
    top: list[tuple[int, float]]

    __repr__ = without_content


class Request(Struct, frozen=True):
    """One generation asked for by one tenant. ``token_ids`` never reach a log, metric, trace or error.

    ``cache_salt``: within the tenant, pages are shared between requests with the same one alone.

    Units:
        deadline_s: seconds from its arrival to its last token.
    """

    id: RequestId
    tenant: TenantId
    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    deadline_s: float = 600.0
    cache_salt: str = ""

    __repr__ = without_content
