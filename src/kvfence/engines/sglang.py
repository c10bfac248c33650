"""SGLang: both legs by ``/generate`` with token ids, tied together by the bootstrap host, port and room.

Source: ``http_server``, ``io_struct``, ``tokenizer_manager`` and ``disaggregation`` of 0.5.19 to 0.5.23.
"""

from typing import Any

import httpx
from msgspec import DecodeError, Struct, ValidationError, json

from kvfence.core.errors import EvidenceError
from kvfence.core.request import Request, SamplingParams, TokenLogprob
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
from kvfence.evidence.sglang import INPUT_MARGIN
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EngineWords, TokensOut

INFO, GENERATE, ABORT = "/server_info", "/generate", "/abort_request"
_TOTAL_ABOVE_INPUT = INPUT_MARGIN - 2
"""Answers are cut at max_req_len - 1 tokens in all, and max_req_len is max_req_input_len + 5."""


class _Memory(Struct, frozen=True):
    token_capacity: int


class _State(Struct, frozen=True):
    memory_usage: _Memory


class _Info(Struct, frozen=True):
    disaggregation_mode: str
    max_req_input_len: int
    internal_states: list[_State]
    version: str = ""
    served_model_name: str = ""
    page_size: int = 1
    disaggregation_bootstrap_port: int = 0
    num_reserved_decode_tokens: int = 0


class _Finish(Struct, frozen=True):
    type: str
    message: str = ""
    status_code: int | None = None


class _Meta(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: _Finish | None = None
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    output_top_logprobs: list[list[tuple[float | None, int, Any]] | None] = []


class _Answer(Event, frozen=True):
    meta_info: _Meta = _Meta()
    output_ids: list[int] = []


class SglangDialect:
    """Implements ``dialect.Dialect``."""

    at_once = True

    async def look(self, http: httpx.AsyncClient, url: str, role: Role) -> Measured:
        """Read ``/server_info``: the input limit and the pool that the scheduler computed, not the flags."""
        answer = await http.get(url + INFO)
        if answer.status_code != 200:
            raise EvidenceError(f"{INFO}: HTTP {answer.status_code}")
        try:
            info = json.decode(answer.content, type=_Info)
        except (DecodeError, ValidationError) as error:
            raise EvidenceError(
                f"{INFO} is not SGLang's, or of a release not known here ({type(error).__name__})"
            ) from None
        if info.disaggregation_mode != role:
            raise EvidenceError(f"its --disaggregation-mode is {info.disaggregation_mode}, not {role}")
        if not info.internal_states:
            raise EvidenceError(f"{INFO} names no pool")
        return Measured(
            role,
            info.served_model_name,
            info.version,
            info.page_size,
            min(each.memory_usage.token_capacity for each in info.internal_states),
            info.max_req_input_len - 1,
            info.max_req_input_len + _TOTAL_ABOVE_INPUT,
            info.num_reserved_decode_tokens if role == "decode" else 0,
            info.disaggregation_bootstrap_port,
        )

    def prefill_call(self, pair: Pair, order: Order) -> Call:
        """Ask for the whole request: prefill ends it after its first token."""
        return Call(pair.prefill.url + GENERATE, json.encode({**_body(pair, order), "stream": False}))

    def decode_call(self, pair: Pair, order: Order, said: Said | None) -> Call:  # noqa: ARG002 - asked at once
        """Ask for the same in the same room, as a stream."""
        return Call(pair.decode.url + GENERATE, json.encode({**_body(pair, order), "stream": True}))

    def read_prefill(self, body: bytes) -> Said:
        """Read its count: 1 where a placeholder took a refused prompt's place."""
        try:
            answer = json.decode(body, type=_Answer)
        except (DecodeError, ValidationError):
            return Said(None)
        meta, finish = answer.meta_info, answer.meta_info.finish_reason
        first = answer.output_ids[0] if answer.output_ids else None
        if finish is not None and finish.type not in REASONS:
            return Said(meta.prompt_tokens, first, reason=EndReason.TRANSFER_FAILED, words=_words(finish))
        return Said(meta.prompt_tokens, first, meta.cached_tokens)

    def abort_call(self, spot: Spot, order: Order) -> Call | None:
        """Name the request.

        Source: 0.5.19 forgets a stream that is closed before it aborts it, and generates on to its end.
        """
        return Call(spot.url + ABORT, json.encode({"rid": _rid(order), "abort_all": False}))

    def reader(self, order: Order) -> Reader:  # noqa: ARG002 - every event has what is read
        """Read events whose tokens are all so far, or only the new ones, as the server was started."""
        return _Stream().read


class _Stream:
    """One stream of decode. Holds: how many tokens were read."""

    def __init__(self) -> None:
        self._num_read = 0

    def read(self, data: bytes) -> Heard:
        """Read one event."""
        answer = read_event(data, _Answer)
        if isinstance(answer, Heard):
            return answer
        meta, finish = answer.meta_info, answer.meta_info.finish_reason
        num_new = meta.completion_tokens - self._num_read
        self._num_read = meta.completion_tokens
        tokens = _tokens(answer, num_new) if num_new > 0 else None
        if tokens is not None and len(tokens.token_ids) != num_new:
            return Heard(reason=EndReason.TRANSFER_FAILED)
        if finish is None:
            return Heard(meta.prompt_tokens, tokens)
        if finish.type not in REASONS:
            return Heard(None, None, EndReason.TRANSFER_FAILED, _words(finish))
        return Heard(meta.prompt_tokens, tokens, REASONS[finish.type])


def _tokens(answer: _Answer, num_new: int) -> TokensOut:
    meta = answer.meta_info
    ids, said = answer.output_ids[-num_new:], meta.output_token_logprobs[-num_new:]
    tops = meta.output_top_logprobs[-num_new:] or [None] * len(said)
    logprobs = tuple(
        TokenLogprob(value if value is not None else 0.0, [(token, at or 0.0) for at, token, _ in top or ()])
        for (value, _, _), top in zip(said, tops, strict=False)
    )
    return TokensOut(tuple(ids), logprobs)


def _words(finish: _Finish) -> EngineWords | None:
    return EngineWords(finish.status_code, finish.message) if finish.status_code else None


def _body(pair: Pair, order: Order) -> dict[str, object]:
    request, sampling = order.request, order.request.sampling
    body: dict[str, object] = {
        "rid": _rid(order),
        "input_ids": list(request.token_ids),
        "sampling_params": _sampling(request),
        "bootstrap_host": pair.prefill.host,
        "bootstrap_port": pair.prefill.measured.meeting_port,
        "bootstrap_room": order.room,
        "extra_key": order.salt,
    }
    if sampling.logprobs is not None:
        body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": sampling.logprobs}
    return body


def _rid(order: Order) -> str:
    """Of one length: an abort ends every request whose id begins like it."""
    return f"kvfence-{order.room:016x}"


def _sampling(request: Request) -> dict[str, object]:
    sampling: SamplingParams = request.sampling
    given: dict[str, object] = {
        "max_new_tokens": request.max_tokens,
        **sampling_of(request),
        "min_new_tokens": sampling.min_tokens,
        "sampling_seed": sampling.seed & 0x7FFFFFFF,
    }
    if sampling.stop_token_ids:
        given["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        given["logit_bias"] = {str(token): value for token, value in sampling.logit_bias}
    if sampling.grammar:
        given["json_schema"] = json.encode(schema_of(sampling.grammar)).decode()
    return given
