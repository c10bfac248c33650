"""What the engines' answers say, as they were recorded, cut and bent."""

import json
from typing import Any

import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.engines.dialect import Order
from kvfence.engines.door import ending_of, words_of
from kvfence.engines.measured import Measured, smallest, sums
from kvfence.engines.sglang import SglangDialect
from kvfence.engines.vllm import VllmDialect
from kvfence.protocol.messages import EndReason

ORDER = Order(Request(RequestId("r"), TenantId("t"), (1, 2), 8, SamplingParams(logprobs=1)), "salt", 7)


def event(tokens: list[int], count: int, finish: dict[str, Any] | None = None) -> bytes:
    """An event of SGLang's ``/generate``."""
    meta = {"prompt_tokens": 2, "completion_tokens": count, "finish_reason": finish, "cached_tokens": 0}
    return json.dumps({"text": "x", "output_ids": tokens, "meta_info": meta}).encode()


@pytest.mark.parametrize("events", [[[5], [5, 6, 7]], [[5], [6, 7]]], ids=["all so far", "only new ones"])
def test_sglangs_events_give_each_token_once(events: list[list[int]]) -> None:
    """Whether the server repeats all tokens with every event or not."""
    read = SglangDialect().reader(ORDER)
    heard = [read(event(tokens, count)) for tokens, count in zip(events, (1, 3), strict=True)]
    assert [each.tokens.token_ids for each in heard if each.tokens is not None] == [(5,), (6, 7)]


def test_sglang_that_names_fewer_tokens_than_it_counts_is_not_believed() -> None:
    """A token would be missing in the middle of the text."""
    assert SglangDialect().reader(ORDER)(event([5], 2)).reason is EndReason.TRANSFER_FAILED


def test_sglangs_abort_is_no_end() -> None:
    """Its status says whose fault it is; prefill's stub says ``length`` and counts 1."""
    aborted = SglangDialect().reader(ORDER)(event([], 0, {"type": "abort", "message": "m", "status_code": 400}))
    assert (aborted.reason, aborted.words and aborted.words.status) == (EndReason.TRANSFER_FAILED, 400)
    stub = {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": {"type": "length", "length": 0}}
    said = SglangDialect().read_prefill(json.dumps({"text": "-", "output_ids": [3], "meta_info": stub}).encode())
    assert (said.num_prompt, said.reason) == (1, None)
    failed = {**stub, "finish_reason": {"type": "abort", "message": "m", "status_code": 500}}
    assert SglangDialect().read_prefill(json.dumps({"meta_info": failed}).encode()).reason is EndReason.TRANSFER_FAILED


@pytest.mark.parametrize("dialect", [SglangDialect(), VllmDialect()])
@pytest.mark.parametrize(
    "data", [b"", b"[]", b"\xff", b'{"meta_info": 3, "choices": 4}', b'{"error": {"message": "m"}}']
)
def test_what_cannot_be_read_is_a_failure_and_no_crash(dialect: Any, data: bytes) -> None:
    """In a stream; in prefill's answer it is a count that is not known."""
    heard = dialect.reader(ORDER)(data)
    assert heard.reason is EndReason.TRANSFER_FAILED
    assert dialect.read_prefill(data).num_prompt is None


def test_vllm_gives_as_many_likeliest_tokens_as_were_asked_for() -> None:
    """It adds the one that was chosen."""
    logprobs = {"token_logprobs": [-2.0], "top_logprobs": [{"token_id:9": -2.0, "token_id:4": -0.1, "<x>": -0.2}]}
    choice = {"index": 0, "text": "x", "token_ids": [9], "logprobs": logprobs, "finish_reason": None}
    heard = VllmDialect().reader(ORDER)(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 2}}).encode())
    assert heard.tokens is not None
    (said,) = heard.tokens.logprobs
    assert (said.logprob, said.top) == (-2.0, [(4, -0.1)])


@pytest.mark.parametrize(
    ("status", "reason", "elsewhere", "unsettled"),
    [
        (0, EndReason.WORKER_LOST, True, True),
        (401, EndReason.NO_WORKER, True, False),
        (400, EndReason.REFUSED_AT_INTAKE, False, False),
        (422, EndReason.REFUSED_AT_INTAKE, False, False),
        (429, EndReason.SERVER_FULL, True, False),
        (503, EndReason.SERVER_FULL, True, False),
        (500, EndReason.TRANSFER_FAILED, True, True),
    ],
)
def test_statuses_say_whether_another_pair_may_do_better(
    status: int, reason: EndReason, elsewhere: bool, unsettled: bool
) -> None:
    """A refusal of the request is final; after a failure pages may still be moving."""
    ending = ending_of(status)
    assert (ending.reason, ending.elsewhere, ending.unsettled) == (reason, elsewhere, unsettled)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "m", "type": "BadRequestError", "code": 400}}',
        b'{"object": "error", "message": "m", "code": 400}',
        b'{"detail": "m"}',
        b'{"error": "m"}',
    ],
)
def test_an_engines_words_are_found_where_its_release_puts_them(body: bytes) -> None:
    """Each shape was seen."""
    words = words_of(400, body)
    assert words is not None
    assert (words.status, words.message, repr(words)) == (400, "m", "EngineWords(...)")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"error": {}}', b'{"detail": [{"loc": []}]}'])
def test_without_words_there_are_none(body: bytes) -> None:
    """Our own stand in their place."""
    assert words_of(400, body) is None


def test_the_smallest_worker_of_a_role_counts() -> None:
    """In each limit by itself."""
    one = Measured("decode", "m", "1", 16, 4096, 4000, 4010, 64)
    other = Measured("decode", "m", "1", 1, 8192, 3000, 3010, 512)
    assert smallest([one, other]) == Measured("decode", "m", "1", 16, 4096, 3000, 3010, 512)


def test_a_prompt_fits_in_whole_pages_with_what_decode_wants_free() -> None:
    """33 tokens and 64 more: 112 of 112, and no token more."""
    prefill = Measured("prefill", "m", "1", 16, 48, 40, 4000)
    decode = Measured("decode", "m", "1", 16, 112, 4000, 4000, reserve=64)
    assert [fit.holds for fit in sums(prefill, decode, 33, 8)] == [True] * 5
    assert [fit.resource for fit in sums(prefill, decode, 49, 8) if not fit.holds] == [
        "prefill prompt tokens",
        "prefill pool tokens",
        "decode pool tokens",
    ]
