import json

import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.gateway.responses import Failure
from kvfence.gateway.translate import Caller, Served, Translation, translate_chat, translate_completion
from tests.unit.gateway.fakes import CAPACITY, ByteTokenizer, chat

CALLER = Caller(RequestId("r-1"), TenantId("acme"), 60.0)
MARKER = "ZEBRA-MARKER"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def served(tokenizer: ByteTokenizer | None = None) -> Served:
    """What the tests' server can do."""
    return Served("toy", tokenizer or ByteTokenizer(), CAPACITY)


def translate(body, path=translate_completion, **kwargs):
    """Translate a body given as JSON or as bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return path(raw, served(**kwargs), CALLER)


def completion(prompt, **fields):
    """A completion body."""
    return {"model": "toy", "prompt": prompt, **fields}


def refused(body, path=translate_completion, **kwargs) -> Failure:
    """Translate a body that must be refused."""
    failure = translate(body, path, **kwargs)
    assert isinstance(failure, Failure)
    return failure


def granted(body, path=translate_completion, **kwargs) -> Translation:
    """Translate a body that must be taken."""
    translation = translate(body, path, **kwargs)
    assert isinstance(translation, Translation), translation
    return translation


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
def test_one_prompt_in_four_forms(prompt):
    """A string, token ids, and a list of one of either, are the same prompt."""
    request = granted(completion(prompt)).request
    assert request.token_ids == (97, 98, 99)
    assert (request.id, request.tenant, request.deadline_s, request.max_tokens) == ("r-1", "acme", 60.0, 16)


def test_a_cache_salt_reaches_the_request():
    """Absent it is empty; what is too long or empty is refused by name."""
    assert granted(completion("abc")).request.cache_salt == ""
    assert granted(completion("abc", cache_salt="mine")).request.cache_salt == "mine"
    for wrong in ("", "x" * 257, 7):
        assert refused(completion("abc", cache_salt=wrong)).param == "cache_salt"


def test_sampling_fields_pass_through():
    """Each sampling field reaches the request; top_k -1 is off."""
    body = completion("a", temperature=0, top_p=0.5, top_k=-1, seed=7, stop=["x", "y"], max_tokens=3)
    request = granted(body).request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.0, 0.5, 0, 7)
    assert (request.stop, request.max_tokens) == (("x", "y"), 3)


def test_a_seed_is_drawn_where_none_is_given():
    """Two requests without a seed have different ones; a negative seed is a seed."""
    seeds = {granted(completion("a")).request.sampling.seed for _ in range(4)}
    assert len(seeds) == 4
    assert granted(completion("a", seed=-1)).request.sampling.seed >= 0


def test_a_chat_is_rendered_and_may_use_what_is_left():
    """Without a limit a chat's answer may fill the context."""
    request = granted(chat("hi"), translate_chat).request
    assert bytes(request.token_ids) == b"<user>hi"
    assert request.max_tokens == CAPACITY.context_tokens - len(b"<user>hi")


def test_a_chat_takes_text_parts_and_developer_messages():
    """Text parts are joined; a developer message is a system message."""
    body = chat("hi")
    body["messages"] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "name": "x"},
    ]
    body["max_completion_tokens"] = 5
    request = granted(body, translate_chat).request
    assert bytes(request.token_ids) == b"<system>be brief<user>hi"
    assert request.max_tokens == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1}, "model"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [[1, "x"]]}, "prompt[0][1]"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "b"]}, "prompt"),
        ({"prompt": [1, 257]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 10**30}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": "x" * 300}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": "x"}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "min_tokens": 5}, "min_tokens"),
        ({"response_format": {"type": "json_object", "unheard_of": 1}}, "response_format"),
        ({"response_format": {"type": "json_object", "value": {"not": {}}}}, "response_format.value"),
        ({"response_format": {"type": "json_object", "value": {}, "schema": {}}}, "response_format.value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}, "schema": {}}},
            "response_format.schema",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    """Every wrong or unsupported field is a 400 that names it."""
    failure = refused({**completion("abc"), **fields})
    assert (failure.status, failure.param) == (400, param)
    assert failure.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": MARKER, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "user", "content": "x", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": MARKER}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": MARKER}], "messages"),
    ],
)
def test_a_wrong_message_is_named(messages, param):
    """Every wrong message is a 400 with its place, and none of its text."""
    failure = refused({"model": "toy", "messages": messages}, translate_chat)
    assert (failure.status, failure.param) == (400, param)
    assert MARKER not in failure.message


@pytest.mark.parametrize(
    "fields",
    [
        {
            "n": None,
            "best_of": 1,
            "echo": False,
            "suffix": None,
            "logprobs": None,
            "tools": [],
            "presence_penalty": 0.0,
        },
        {"user": "someone", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "unheard_of": [1]},
        {"response_format": {"type": "text"}, "logit_bias": {}, "stream": None, "stop": None, "seed": None},
    ],
)
def test_fields_that_ask_for_nothing_are_ignored(fields):
    """Unsupported fields at their neutral value, and fields that do not change the text, are let through."""
    granted(completion("abc", **fields))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"model": nope}', "not JSON (at byte"),
        (b"[1]", "the body: Expected object, got array"),
        (b'{"model":"toy","prompt":"a\xff"}', "not valid UTF-8"),
        (b'{"model":"toy","prompt":"\\ud800"}', "not JSON"),
        (b'{"model":"toy","prompt":"a","unheard_of":"\xff"}', "not valid UTF-8"),
        (b'{"model":"toy","prompt":"a","\xff":1}', "not valid UTF-8"),
        (b'{"model":"toy","prompt":"a","x":' + b"[" * 200_000, "nested too deeply"),
        (b'{"prompt":"a"}', "model is missing"),
    ],
)
def test_a_body_that_is_no_request_is_a_400(body, says):
    """Broken JSON, UTF-8 and nesting are each told apart."""
    failure = refused(body)
    assert failure.status == 400
    assert says in failure.message


def test_an_unknown_model_is_not_repeated():
    """The answer names the model that is served, not the one that was asked for."""
    failure = refused({"model": MARKER, "prompt": "x"})
    assert (failure.status, failure.code) == (404, "model_not_found")
    assert "toy" in failure.message
    assert MARKER not in failure.message


@pytest.mark.parametrize(
    ("path", "body"), [(translate_completion, completion("x" * 1025)), (translate_chat, chat("x" * 1025))]
)
def test_a_prompt_that_its_bytes_prove_too_long_is_not_tokenised(path, body):
    """More bytes than context times the longest token: refused with the arithmetic, and nobody tokenised."""
    tokenizer = ByteTokenizer(longest_token_bytes=4)
    failure = refused(body, path, tokenizer=tokenizer)
    assert (failure.status, failure.code) == (400, "context_length_exceeded")
    assert "needs at least 27" in failure.message or "needs at least 258" in failure.message
    assert tokenizer.num_encoded == 0


def test_tokenising_stops_above_the_context():
    """A prompt that may fit is tokenised only until it does not."""
    tokenizer = ByteTokenizer(longest_token_bytes=4)
    failure = refused(completion("x" * 1024), tokenizer=tokenizer)
    assert "at least 273 tokens (257 prompt + 16 answer)" in failure.message
    assert tokenizer.num_encoded == 1


def test_token_ids_beyond_the_context_are_refused_by_their_number():
    """A client's own token ids are counted before each is looked at."""
    failure = refused(completion([999_999] * 300))
    assert failure.code == "context_length_exceeded"


def test_a_prompt_that_fills_the_context_is_left_to_admission():
    """Exactly one context passes translation: the sums decide, with the answer's tokens."""
    request = granted(chat("x" * (256 - len("<user>"))), translate_chat).request
    assert len(request.token_ids) == 256
    assert request.max_tokens == 1


def test_two_limits_that_differ_are_refused():
    """max_tokens and max_completion_tokens may both stand there only if they agree."""
    assert refused(chat("x", max_tokens=1, max_completion_tokens=2), translate_chat).param == "max_tokens"
    assert granted(chat("x", max_tokens=2, max_completion_tokens=2), translate_chat).request.max_tokens == 2


def test_every_choice_has_an_id_and_a_seed_of_its_own():
    """Choices differ in id and seed alone; the first is what n = 1 would be; the same seed gives the same choices."""
    first = granted(completion("abc", n=3, seed=5, presence_penalty=1))
    requests = first.requests
    assert requests[0] == granted(completion("abc", seed=5, presence_penalty=1)).request
    assert [each.id for each in requests] == ["r-1", "r-1-1", "r-1-2"]
    assert len({each.sampling.seed for each in requests}) == 3
    assert {each.sampling.presence_penalty for each in requests} == {1}
    assert requests == granted(completion("abc", n=3, seed=5, presence_penalty=1)).requests


def test_steering_fields_pass_through():
    """Penalties, biases, cuts, ends and log probabilities reach the workers as they were given."""
    body = completion("a", logprobs=3, min_p=0.1, min_tokens=2, stop_token_ids=[9, 7, 7], logit_bias={"5": -1.5})
    sampling = granted(body | {"frequency_penalty": 0.5, "repetition_penalty": 1.1}).request.sampling
    assert (sampling.logprobs, sampling.min_p, sampling.min_tokens) == (3, 0.1, 2)
    assert (sampling.stop_token_ids, sampling.logit_bias) == ((7, 9), ((5, -1.5),))
    assert (sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, 1.1)
    assert granted(completion("a", temperature=0, top_p=0.5)).request.sampling.is_plain


def test_a_chats_log_probabilities_are_asked_for_by_two_fields():
    """logprobs alone reports the chosen token, top_logprobs adds others; alone it is refused."""
    assert granted(chat("x", logprobs=True), translate_chat).request.sampling.logprobs == 0
    assert granted(chat("x", logprobs=True, top_logprobs=4), translate_chat).request.sampling.logprobs == 4
    assert granted(chat("x", logprobs=False, top_logprobs=0), translate_chat).request.sampling.logprobs is None
    assert refused(chat("x", top_logprobs=4), translate_chat).param == "top_logprobs"


def test_a_response_format_becomes_a_grammar():
    """json_object and json_schema are enforced; text asks for nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    assert '"integer"' in granted(completion("a", response_format=form)).request.sampling.grammar
    for other in ({"type": "json_object", "value": schema}, {"type": "json_object", "schema": schema}):
        assert '"integer"' in granted(completion("a", response_format=other)).request.sampling.grammar
    assert granted(completion("a", response_format={"type": "json_object"})).request.sampling.grammar
    assert granted(completion("a", response_format={"type": "text"})).request.sampling.is_plain


def test_why_a_schema_cannot_be_enforced_is_said_without_quoting_it():
    """The failure names the part of JSON Schema and nothing of the client's."""
    form = {"type": "json_schema", "json_schema": {"name": MARKER, "schema": {"not": {"const": MARKER}}}}
    failure = refused(completion("a", response_format=form))
    assert failure.code == "invalid_json_schema"
    assert "(about: not)" in failure.message
    assert MARKER not in failure.message
