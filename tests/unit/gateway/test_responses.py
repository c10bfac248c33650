import json

from kvfence.gateway.responses import (
    ENDINGS,
    Need,
    describe_need,
    error_body,
    error_headers,
    failure_of,
    finish_reason,
    too_large,
)
from kvfence.protocol.admission import Capacity, fits
from kvfence.protocol.messages import EndReason

REPORTED = Capacity(page_size=16, context_tokens=8192, prefill_pages=512, decode_pages=513)


def test_every_ending_has_a_row():
    """No attempt can end in a way that the client does not hear of."""
    assert set(ENDINGS) == set(EndReason)


def test_an_ending_is_a_full_answer_or_an_error():
    """Only stop and length are full answers; every other row is an error with a status, type, code and message."""
    full = {reason for reason in EndReason if finish_reason(reason) is not None}
    assert full == {EndReason.STOP, EndReason.LENGTH}
    for reason in set(EndReason) - full:
        row = ENDINGS[reason]
        assert row.status >= 400
        assert row.type
        assert row.code
        assert row.message


def test_the_arithmetic_names_every_pool():
    """A request that does not fit hears its size and each limit, with what holds and what does not."""
    words = describe_need(Need(8984, 16, fits(REPORTED, 8984, 16)), 16)
    assert "9000 tokens (8984 prompt + 16 answer) = 563 pages of 16" in words
    assert "context tokens: 9000 of 8192, does not fit" in words
    assert "prefill pages: 562 of 512, does not fit" in words
    assert "decode pages: 563 of 513, does not fit" in words
    assert words.endswith("Shorten the prompt or lower max_tokens.")


def test_a_long_answer_alone_is_mended_by_max_tokens():
    """Where only the answer is too long, the largest max_tokens that fits is named."""
    words = describe_need(Need(8000, 500, fits(REPORTED, 8000, 500)[:1]), 16)
    assert words.endswith("Lower max_tokens to 192 or less, or shorten the prompt.")


def test_an_uncounted_prompt_says_at_least():
    """A prompt that was not counted to its end is never given an exact size."""
    failure = too_large(Need(8193, 16, fits(REPORTED, 8193, 16), at_least=True), 16, "prompt")
    assert failure.message.startswith("This request needs at least 8209 tokens")
    assert (failure.status, failure.code, failure.param) == (400, "context_length_exceeded", "prompt")


def test_integrity_errors_say_that_nothing_leaked():
    """A guard that stopped an answer says that nothing of it was sent."""
    for reason in (EndReason.COUNT_MISMATCH, EndReason.STAMP_MISMATCH, EndReason.DIGEST_MISMATCH):
        failure = failure_of(reason)
        assert (failure.status, failure.code) == (500, "kv_integrity")
        assert "Nothing of it reached you" in failure.message


def test_retry_after_is_a_header_where_it_makes_sense():
    """The dispatcher's own delay wins over the row's; where asking again is useless there is none."""
    assert error_headers(failure_of(EndReason.QUEUE_FULL))["retry-after"] == "1"
    assert error_headers(failure_of(EndReason.NO_WORKER, 7))["retry-after"] == "7"
    assert "retry-after" not in error_headers(failure_of(EndReason.DOES_NOT_FIT))


def test_errors_have_openais_shape():
    """The body is one object under error with message, type, param and code."""
    body = json.loads(error_body(failure_of(EndReason.DEADLINE)))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
