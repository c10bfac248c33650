"""vLLM: ``/v1/completions`` with token ids, prefill first, then decode with what prefill's connector gave.

Source: ``entrypoints/openai/completion`` and ``kv_connector/v1/nixl`` of 0.29 to 0.32.
"""

from functools import partial
from typing import Any

import httpx
from msgspec import DecodeError, Raw, Struct, ValidationError, json
from prometheus_client.parser import text_string_to_metric_families

from kvfence.core.errors import EvidenceError
from kvfence.core.request import Request, TokenLogprob
from kvfence.core.settings import Role
from kvfence.engines.dialect import (
    REASONS,
    Call,
    Event,
    Heard,
    Order,
    Pair,
    Reader,
    Said,
    Spot,
    read_event,
    sampling_of,
)
from kvfence.engines.measured import Measured
from kvfence.engines.steering import schema_of
from kvfence.evidence.vllm import ASK_PREFILL
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import TokensOut

MODELS, METRICS, COMPLETIONS = "/v1/models", "/metrics", "/v1/completions"
CACHE_CONFIG = "vllm:cache_config_info"
_TOKEN_NAME = "token_id:"


class _Model(Struct, frozen=True):
    id: str
    max_model_len: int


class _Models(Struct, frozen=True):
    data: list[_Model]


class _Cached(Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Logprobs(Struct, frozen=True):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class _Choice(Struct, frozen=True):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Answer(Event, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None


class VllmDialect:
    """Implements ``dialect.Dialect``, for connectors whose decode side fetches (NIXL's default)."""

    at_once = False

    async def look(self, http: httpx.AsyncClient, url: str, role: Role) -> Measured:
        """Read the context from ``/v1/models`` and the pool from ``/metrics``.

        A server says nothing of its role in a pair: ``kvfence audit`` reads it from the command line.
        """
        listed, shown = await http.get(url + MODELS), await http.get(url + METRICS)
        for path, answer in ((MODELS, listed), (METRICS, shown)):
            if answer.status_code != 200:
                raise EvidenceError(f"{path}: HTTP {answer.status_code}")
        try:
            model = json.decode(listed.content, type=_Models).data[0]
        except (DecodeError, ValidationError, IndexError) as error:
            raise EvidenceError(f"{MODELS} names no model and context ({type(error).__name__})") from None
        page_size, pool = _pool(shown.text)
        context = model.max_model_len
        return Measured(role, model.id, "", page_size, pool, context - 1, context)

    def prefill_call(self, pair: Pair, order: Order) -> Call:
        """Ask prefill for one token, and for what decode needs to fetch the pages."""
        body = _body(pair.prefill.measured.model, order)
        body |= {"max_tokens": 1, "min_tokens": 0, "stream": False, "kv_transfer_params": ASK_PREFILL}
        return Call(pair.prefill.url + COMPLETIONS, json.encode(body))

    def decode_call(self, pair: Pair, order: Order, said: Said | None) -> Call:
        """Ask decode for the answer; where prefill gave nothing to fetch, decode computes the prompt itself."""
        body = _body(pair.decode.measured.model, order)
        body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        if said is not None and said.params is not None:
            body["kv_transfer_params"] = said.params
        return Call(pair.decode.url + COMPLETIONS, json.encode(body))

    def read_prefill(self, body: bytes) -> Said:
        """Read its count, and the count that its connector gives with the pages; the smaller one holds.

        The last token's own slot may be left out: decode computes it again.
        """
        try:
            answer = json.decode(body, type=_Answer)
        except (DecodeError, ValidationError):
            return Said(None)
        usage, params = answer.usage or _Usage(), answer.kv_transfer_params
        num_prompt, moved = usage.prompt_tokens, (params or {}).get("remote_num_tokens")
        if isinstance(moved, int) and num_prompt is not None and not num_prompt - 1 <= moved <= num_prompt:
            num_prompt = moved
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0
        return Said(num_prompt, None, cached or 0, Raw(json.encode(params)) if params else None)

    def abort_call(self, spot: Spot, order: Order) -> Call | None:  # noqa: ARG002 - it has no such address
        """None: a closed connection is the abort."""
        return None

    def reader(self, order: Order) -> Reader:
        """Read events, each with its own tokens."""
        return partial(_read, num_top=order.request.sampling.logprobs or 0)


def _read(data: bytes, *, num_top: int) -> Heard:
    answer = read_event(data, _Answer)
    if isinstance(answer, Heard):
        return answer
    num_prompt = answer.usage.prompt_tokens if answer.usage is not None else None
    if not answer.choices:
        return Heard(num_prompt)
    choice = answer.choices[0]
    tokens = TokensOut(tuple(choice.token_ids), _logprobs(choice.logprobs, num_top)) if choice.token_ids else None
    if choice.finish_reason is None:
        return Heard(num_prompt, tokens)
    return Heard(num_prompt, tokens, REASONS.get(choice.finish_reason, EndReason.TRANSFER_FAILED))


def _logprobs(said: _Logprobs | None, num_top: int) -> tuple[TokenLogprob, ...]:
    if said is None:
        return ()
    tops = said.top_logprobs or [None] * len(said.token_logprobs)
    return tuple(
        TokenLogprob(value or 0.0, _likeliest(top or {}, num_top))
        for value, top in zip(said.token_logprobs, tops, strict=False)
    )


def _likeliest(top: dict[str, float], num_top: int) -> list[tuple[int, float]]:
    """Give as many as were asked for: the engine adds the token that was chosen."""
    named = ((name.removeprefix(_TOKEN_NAME), at) for name, at in top.items())
    found = [(int(name), at) for name, at in named if name.isdecimal()]
    return sorted(found, key=lambda each: -each[1])[:num_top]


def _pool(text: str) -> tuple[int, int]:
    """Give page size and pool in tokens; the engine keeps one page for itself.

    Raises:
        EvidenceError: no such line, or not in numbers.
    """
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == CACHE_CONFIG:
                    page_size, num_pages = int(sample.labels["block_size"]), int(sample.labels["num_gpu_blocks"])
                    return page_size, (num_pages - 1) * page_size
    except (ValueError, KeyError):
        pass
    raise EvidenceError(f"{METRICS} has no {CACHE_CONFIG} with a pool")


def _body(model: str, order: Order) -> dict[str, object]:
    request: Request = order.request
    sampling = request.sampling
    body: dict[str, object] = {
        "model": model,
        "prompt": list(request.token_ids),
        "max_tokens": request.max_tokens,
        **sampling_of(request),
        "min_tokens": sampling.min_tokens,
        "seed": sampling.seed,
        "cache_salt": order.salt,
        "return_token_ids": True,
    }
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): value for token, value in sampling.logit_bias}
    if sampling.logprobs is not None:
        body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if sampling.grammar:
        body["structured_outputs"] = {"json": schema_of(sampling.grammar)}
    return body
