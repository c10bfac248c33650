"""Answers made to end the probe, or to get a key or a prompt into its report: each is one exchange with a name."""

import gzip
from typing import Any

import pytest
from msgspec.structs import replace

from kvfence.probe.answers import HEARD_CHARS_MAX, Hearing
from kvfence.probe.client import Client, Patience, retry_after_of
from kvfence.probe.detectors.slow_refusal import slow_refusals
from kvfence.probe.excerpts import EXCERPTS_CHARS_MAX, ROUND_CHARS, TEXT_CHARS_MAX
from kvfence.probe.exchange import Ask, Exchange, Phase, Trouble
from kvfence.probe.finding import Redactor, Sight, answer_of
from kvfence.probe.phases.calibrate import context_of
from kvfence.probe.refusals import RUN_CHARS, read_refusal
from kvfence.probe.run import Look, look
from tests.unit.probe.fakes import Fake, Handler, Seen, Wire, door_to, piece

KEY = "sk-" + "0123456789abcdef" * 3
DEEP = b"[" * 100_000
NESTED = b'{"error":' * 3000
ASK = Ask(number=1, tenant="b", phase=Phase.SEED, prompt="say it", max_tokens=4)


async def heard(handler: Handler, ask: Ask = ASK, **more: Any) -> Exchange:
    """What one canary is answered."""
    async with Fake(handler) as fake, Client(door_to(fake, keys={"b": KEY}, **more), 4) as client:
        found = await client.ask(ask, Patience(5.0))
        return found.exchange


@pytest.mark.parametrize("before", [0, 240, 270, 280, 290, 299])
async def test_no_piece_of_a_key_is_left_where_words_are_cut(before: int) -> None:
    """A key that stands across the cut is taken out first."""
    for body in ({"error": {"message": "." * before + KEY}}, b"." * before + KEY.encode()):
        found = await heard(lambda _, wire, body=body: wire.answer(401, body))
        assert found.message.startswith("." * before)
        assert "sk-" not in found.message
        assert not any(KEY[at : at + 4] in found.message for at in range(len(KEY) - 3))


async def test_a_stream_that_breaks_is_no_refusal() -> None:
    """What the probe says of it is not the server's word; an error in its place is."""
    found = await heard(lambda _, wire: wire.events(done=False))
    assert (found.trouble, found.refusal) == (Trouble.BROKEN, "")
    assert not slow_refusals([replace(found, ended_s=found.sent_s + 60)])
    found = await heard(lambda _, wire: wire.events({"error": {"message": "too long"}}))
    assert slow_refusals([replace(found, ended_s=found.sent_s + 60)])


async def test_no_piece_of_a_key_is_left_after_many_keys() -> None:
    """However often a body that is no JSON repeats a key, no cut comes before the mask."""
    found = await heard(lambda _, wire: wire.answer(401, (KEY + " ").encode() * 60))
    assert "sk-" not in found.message


async def test_a_key_that_begins_with_another_is_taken_out_whole() -> None:
    """The longer one goes first."""
    async with Fake(lambda _, wire: wire.answer(401, {})) as fake:
        assert door_to(fake, keys={"a": KEY, "b": KEY + "tail"}).masked(KEY + "tail") == "(key)"


async def test_a_key_in_an_answer_is_in_no_evidence() -> None:
    """Neither text nor what stands aside nor the reason of the end keeps it, over pieces too; a short one stays."""
    delta = {"content": KEY[:9], "reasoning_content": KEY}
    frames = [{"choices": [{"delta": delta}]}, {"choices": [{"delta": {"content": KEY[9:]}, "finish_reason": KEY}]}]
    found = await heard(lambda _, wire: wire.events(*frames), headers={"x-team": "key"})
    assert (found.text, found.aside, found.finish_reason) == ("(key)", "(key)", "(key)")
    (evidence,) = Redactor(keep=True).evidence([Sight(exchange=found)])
    assert evidence.text is not None
    assert "sk-" not in evidence.text


@pytest.mark.parametrize(
    ("trouble", "handler"),
    [
        (Trouble.MALFORMED, lambda _, wire: wire.answer(200, DEEP)),
        (Trouble.MALFORMED, lambda _, wire: wire.events(DEEP.decode())),
        (Trouble.MALFORMED, lambda _, wire: wire.events(NESTED.decode())),
        (Trouble.BROKEN, lambda _, wire: wire.events('{"error":' * 400 + "1" + "}" * 400)),
        (Trouble.REFUSED, lambda _, wire: wire.answer(400, NESTED)),
        (Trouble.REFUSED, lambda _, wire: wire.answer(400, b'{"error":' * 400 + b"1" + b"}" * 400)),
        (Trouble.REFUSED, lambda _, wire: wire.answer(307, {}, location="http://[evil")),
        (Trouble.REFUSED, lambda _, wire: wire.answer(400, {"error": "maximum context length is " + "9" * 6000})),
        (Trouble.LIMITED, lambda _, wire: wire.answer(429, {}, retry_after="Mon, 32 Jan 99999999999 00:00:00 GMT")),
    ],
    ids=["body", "event", "nested", "deep", "refusal", "deep-refusal", "redirect", "number", "date"],
)
async def test_a_hostile_answer_is_one_exchange(trouble: Trouble, handler: Handler) -> None:
    """What cannot be read has its name, its status, and no number out of it."""
    found = await heard(handler)
    assert found.trouble is trouble
    assert found.status is not None
    assert (found.limit_tokens, found.retry_after_s) == (None, None)


async def test_a_packed_list_of_models_is_none() -> None:
    """Plain was asked for: what a packed one unpacks to may be any size."""
    packed = gzip.compress(b'{"data": [{"id": "m"}]}')
    async with Fake(lambda _, wire: wire.answer(200, packed, content_encoding="gzip")) as fake:
        assert await look(door_to(fake)) == Look()


@pytest.mark.parametrize("size", [KEY[:20], KEY[7:30], KEY[-13:]], ids=["head", "middle", "tail"])
async def test_a_piece_of_a_key_is_taken_out(size: str) -> None:
    """Some servers repeat a beginning: twelve characters in a row are too many."""
    found = await heard(lambda _, wire: wire.answer(401, {"error": f"no such token: {size}..."}))
    assert found.message == "no such token: (key)..."
    assert size not in found.refusal


MARKER = "copper lantern walnut 4821"
LATE = "." * 400 + MARKER


@pytest.mark.parametrize(
    "handler",
    [
        lambda _, wire: wire.answer(500, {"error": {"message": LATE}}),
        lambda _, wire: wire.answer(422, {"detail": [{"loc": ["body"], "msg": "bad", "input": MARKER}]}),
        lambda _, wire: wire.answer(502, f"<html>{LATE}</html>".encode()),
        lambda _, wire: wire.answer(200, {"error": {"code": MARKER}}),
        lambda _, wire: wire.answer(200, {"output": [MARKER]}),
        lambda _, wire: wire.events({"error": {"param": MARKER}}),
        lambda _, wire: wire.events({"choices": [{"index": 1, "text": MARKER}]}, piece("so", "stop")),
    ],
    ids=["late", "fields", "page", "error", "other", "event", "choice"],
)
async def test_all_that_comes_is_looked_at(handler: Handler) -> None:
    """Another's text may stand in any part of a refusal, however long, and in a choice that nobody asked for."""
    found = await heard(handler)
    assert MARKER in answer_of(found)


async def test_one_piece_is_cut_as_many_are() -> None:
    """What is kept of an answer is bounded, in however few pieces it comes."""
    found = await heard(lambda _, wire: wire.answer(200, {"choices": [{"text": "a" * (HEARD_CHARS_MAX + 5)}]}))
    assert len(found.text) == TEXT_CHARS_MAX
    assert found.left_out == HEARD_CHARS_MAX + 5 - TEXT_CHARS_MAX


def spread(*words: str, apart: int = 40_000) -> str:
    """A long text in which words stand far apart."""
    return "".join("so it is said " * (apart // 14) + word + " " for word in words)


async def test_a_marker_behind_what_is_kept_is_kept() -> None:
    """Of the rest of an answer too long to be kept, what stands round words of markers stays, whatever the case."""
    said = spread(*MARKER.split()[:1], MARKER, MARKER.upper())
    found = await heard(lambda _, wire: wire.answer(200, {"choices": [{"text": said}]}))
    kept = found.text[TEXT_CHARS_MAX:]
    assert kept.count(MARKER) == 2
    assert kept.count("copper") == 3
    assert len(kept) < 3 * (2 * ROUND_CHARS + len(MARKER) + 2)
    assert found.left_out == len(said) - len(found.text)


async def test_a_marker_across_the_cut_is_kept_whole() -> None:
    """What begins before the cut and ends behind it is in one piece."""
    said = "x" * (TEXT_CHARS_MAX - 12) + " " + MARKER + " " + "y" * 100
    found = await heard(lambda _, wire: wire.answer(200, {"choices": [{"text": said}]}))
    assert MARKER in found.text


async def test_an_answer_of_markers_alone_is_bounded() -> None:
    """However many words of markers it has, no more than so much is kept."""
    found = await heard(lambda _, wire: wire.answer(200, {"choices": [{"text": f"{MARKER} " * 7_000}]}))
    assert EXCERPTS_CHARS_MAX * 9 // 10 <= len(found.text) - TEXT_CHARS_MAX <= EXCERPTS_CHARS_MAX + ROUND_CHARS


async def test_the_values_of_headers_are_kept_without_keys() -> None:
    """Another's text may stand in any header, of a redirect, too; a key that comes back is taken out."""

    async def handler(seen: Seen, wire: Wire) -> None:
        if seen.path.endswith("there"):
            await wire.answer(200, {"choices": [{"text": "so"}]}, x_seen=MARKER, x_key=KEY)
        else:
            await wire.answer(307, {}, location="/v1/there", x_first="first")

    found = await heard(handler)
    values = found.headers.split("\n")
    assert {MARKER, "first", "(key)"} <= set(values)
    assert KEY not in found.headers


async def test_models_nested_without_end_name_nothing() -> None:
    """A list of models that cannot be read is none."""
    async with Fake(lambda _, wire: wire.answer(200, DEEP)) as fake:
        assert await look(door_to(fake)) == Look()
    assert context_of({"max_model_len": 10**400}) is None


async def test_numbers_that_are_none_are_left_out() -> None:
    """A truth value counts nothing, nor does a number that no float holds."""
    logprobs = {"tokens": ["a", "b", "c", "d"], "token_logprobs": [-(10**400), True, -1, -3.4e38]}
    choice = {"index": 0, "text": "abcd", "finish_reason": "stop", "logprobs": logprobs}
    usage = {"prompt_tokens": True, "completion_tokens": 10**400, "prompt_tokens_details": {"cached_tokens": False}}
    found = await heard(lambda _, wire: wire.answer(200, {"choices": [choice], "usage": usage}))
    assert (found.trouble, found.text) == (None, "abcd")
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (None, None, None)
    assert found.logprobs == (("c", -1.0), ("d", -3.4e38))


def test_a_date_that_no_clock_holds_says_nothing() -> None:
    """Retry-After may name any day."""
    assert retry_after_of("Mon, 32 Jan 99999999999 00:00:00 GMT") is None


def test_a_number_too_long_is_no_limit_and_not_a_part_of_it() -> None:
    """Fifteen digits and marks are read, commas and all; of more, none are."""
    assert read_refusal("maximum context length is 4,096, not more").limit_tokens == 4096
    assert read_refusal("maximum context length is " + "1" * 16).limit_tokens is None
    assert read_refusal("pages: 9 of 64, does not fit = 9 pages of 16, so").limit_tokens == 1024


async def test_what_nobody_thought_of_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error in reading is one malformed exchange with the error's kind alone."""

    def broken(*_: object) -> None:
        raise LookupError("foreign text")

    monkeypatch.setattr(Hearing, "event", broken)
    found = await heard(lambda _, wire: wire.events(piece("a", "stop")))
    assert (found.trouble, found.status) == (Trouble.MALFORMED, 200)
    assert found.message == "an answer that cannot be read: LookupError"


@pytest.mark.parametrize("begin", range(0, 40, 3))
def test_words_that_hold_a_run_of_the_prompt_are_left_out(begin: int) -> None:
    """Sixteen characters of the prompt at any place are too many; fifteen may be chance."""
    prompt = "Zq1xW2cE3vR4bT5nY6mU7kI8lO9pPaSdFgHjKlQwErTyUiOp" * 2
    for place in range(9):
        words = "no: " + "." * place
        run = prompt[begin : begin + RUN_CHARS]
        assert read_refusal(words + run + " refused", prompt=prompt).message == "(words that repeat the prompt)"
        assert read_refusal(words + run[:-1] + " refused", prompt=prompt).message.endswith("refused")


async def test_a_server_that_repeats_the_prompt_is_not_quoted() -> None:
    """Through the client, too, with no marker in what is repeated; what else it says is looked at all the same."""
    ask = Ask(number=1, tenant="b", phase=Phase.SEED, prompt="the quick words of a canary, and more", max_tokens=4)
    words = f"bad: {ask.prompt[:30]} {MARKER}"
    found = await heard(lambda _, wire: wire.answer(400, {"error": words}), ask)
    assert (found.trouble, found.message) == (Trouble.REFUSED, "(words that repeat the prompt)")
    assert MARKER in answer_of(found)
