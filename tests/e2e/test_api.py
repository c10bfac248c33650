"""What clients ask for beyond plain text, through real workers, also where sequences preempt each other."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import openai
import pydantic
import pytest
import pytest_asyncio

from tests.e2e.conftest import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES = [{"role": "user", "content": "say something"}]
NUMBERS = {
    "type": "object",
    "properties": {"n": {"type": "array", "items": {"enum": [7, 42, 12345]}, "minItems": 20, "maxItems": 20}},
    "required": ["n"],
    "additionalProperties": False,
}
NO_SPACE = {"13": -9, "35": -9, "267": -9, "268": -9}
FORM = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"unit": {"$ref": "#/$defs/Unit"}},
                "required": ["unit"],
                "additionalProperties": False,
                "$defs": {"Unit": {"enum": ["C", "F"]}},
            },
        },
    }
    for name in ("get_weather", "get_time")
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client; the decode pool holds 1,024 tokens."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as running:
        yield running


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    """A chat completion with a seed."""
    return await client.chat.completions.create(model="toy", messages=MESSAGES, **{"seed": 3, **fields})  # type: ignore[call-overload]


async def num_preempted(client: openai.AsyncOpenAI) -> float:
    """Preemptions that decode has counted."""
    async with httpx.AsyncClient() as plain:
        text = (await plain.get(str(client.base_url.join("/metrics")))).text
    found = re.search(r'kvfence_handoffs_total\{[^}]*outcome="preempted"[^}]*\} (\S+)', text)
    return float(found[1]) if found else 0.0


STEERED: list[dict[str, Any]] = [
    {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.4,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": {"ignore_eos": True},
    },
    {"extra_body": {"repetition_penalty": 1.3, "min_p": 0.02, "ignore_eos": True}, "temperature": 0.8},
    {"extra_body": {"ignore_eos": True}, "temperature": 1.0, "presence_penalty": -0.5},
    {"response_format": FORM, "temperature": 1.0, "logprobs": True, "logit_bias": NO_SPACE},
    {
        "logit_bias": {"40": 3, "41": -100},
        "extra_body": {"min_tokens": 150, "ignore_eos": True},
        "frequency_penalty": 0.3,
    },
]


def content_of(answer: Any) -> tuple[str, list[tuple[list[int], list[list[int]]]]]:
    """Text, and the tokens of the log probabilities."""
    (choice,) = answer.choices
    said = choice.logprobs.content if choice.logprobs else []
    return choice.message.content, [(token.bytes, [top.bytes for top in token.top_logprobs]) for token in said]


async def test_preemption_changes_no_steered_answer(client) -> None:
    """Penalties, grammars and log probabilities go on after a preemption as if there had been none."""
    alone = [content_of(await ask(client, max_tokens=240, **fields)) for fields in STEERED]
    before = await num_preempted(client)
    for _ in range(5):
        together = await asyncio.gather(*(ask(client, max_tokens=240, **fields) for fields in STEERED))
        assert [content_of(answer) for answer in together] == alone
        if await num_preempted(client) > before:
            break
        await asyncio.sleep(0.6)  # the next heartbeat counts it
    else:
        pytest.fail("nothing was preempted")
    assert json.loads(alone[3][0])["n"]


async def test_each_choice_is_what_its_seed_gives(client) -> None:
    """n choices of one request, streamed and whole, are the same; the first is that of n = 1; tokens are summed."""
    whole = await ask(client, n=4, max_tokens=12, temperature=1.0)
    single = await ask(client, max_tokens=12, temperature=1.0)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert texts[0] == single.choices[0].message.content
    assert len(set(texts)) == 4
    assert whole.usage.prompt_tokens == single.usage.prompt_tokens
    streamed = ["", "", "", ""]
    finishes: list[int] = []
    stream = await ask(client, n=4, max_tokens=12, temperature=1.0, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            finishes += [choice.index] if choice.finish_reason else []
        usage = chunk.usage
    assert streamed == texts
    assert sorted(finishes) == [0, 1, 2, 3]
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


async def test_log_probabilities_are_one_for_each_token(client) -> None:
    """Chosen tokens of a greedy answer are the likeliest; bytes joined are the text; penalties do not change them."""
    answer = await ask(client, max_tokens=10, temperature=0, logprobs=True, top_logprobs=2)
    said = answer.choices[0].logprobs.content
    assert len(said) == answer.usage.completion_tokens
    assert all(token.token == token.top_logprobs[0].token and len(token.top_logprobs) == 2 for token in said)
    assert all(token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob for token in said)
    joined = bytes(byte for token in said for byte in token.bytes).decode("utf-8", "replace")
    assert joined == answer.choices[0].message.content
    biased = await ask(client, max_tokens=1, temperature=0, logprobs=True, logit_bias={"50": 100})
    (token,) = biased.choices[0].logprobs.content
    assert token.logprob < said[0].logprob
    assert bytes(token.bytes).decode() == biased.choices[0].message.content


async def test_a_completions_log_probabilities_have_offsets(client) -> None:
    """Completions have their own form, streamed as whole."""
    fields = {"model": "toy", "prompt": "once", "max_tokens": 8, "temperature": 0, "logprobs": 2}
    whole = (await client.completions.create(**fields)).choices[0]
    assert whole.logprobs.text_offset == [sum(map(len, whole.logprobs.tokens[:at])) for at in range(8)]
    assert all(1 <= len(top) <= 2 for top in whole.logprobs.top_logprobs)
    chunks = [chunk async for chunk in await client.completions.create(**fields, stream=True)]
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [offset for part in parts for offset in part.text_offset] == whole.logprobs.text_offset
    assert [each for part in parts for each in part.token_logprobs] == pytest.approx(whole.logprobs.token_logprobs)


async def test_ends_come_no_sooner_than_asked(client) -> None:
    """A stop token ends an answer and is not shown; min_tokens puts it off."""
    biased = {"temperature": 0, "max_tokens": 9, "logit_bias": {"50": 100}}
    ended = await ask(client, **biased, extra_body={"stop_token_ids": [50]})
    assert (ended.choices[0].message.content, ended.choices[0].finish_reason) == ("", "stop")
    assert ended.usage.completion_tokens == 1
    later = await ask(client, **biased, extra_body={"stop_token_ids": [50], "min_tokens": 4})
    assert (later.usage.completion_tokens, later.choices[0].finish_reason) == (5, "stop")


class Size(pydantic.BaseModel):
    """What the parse helper must get."""

    width: int = pydantic.Field(ge=1, le=99)
    unit: str = pydantic.Field(pattern="^(mm|cm)$")


async def test_the_clients_parse_helper_gets_its_model(client) -> None:
    """A pydantic model goes to the server as a strict schema and comes back filled, and the answer ends with stop."""
    parsed = await client.chat.completions.parse(
        model="toy", messages=MESSAGES, response_format=Size, seed=1, temperature=1
    )
    (choice,) = parsed.choices
    assert isinstance(choice.message.parsed, Size)
    assert choice.finish_reason == "stop"
    async with client.chat.completions.stream(
        model="toy", messages=MESSAGES, response_format=Size, seed=1, temperature=1
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == choice.message.parsed


async def test_a_json_object_is_json_unless_it_is_cut(client) -> None:
    """json_object answers with an object; one cut by max_tokens says length."""
    answer = await ask(client, response_format={"type": "json_object"}, max_tokens=200, logit_bias={"128": 20})
    assert isinstance(json.loads(answer.choices[0].message.content), dict)
    cut = await ask(client, response_format=FORM, max_tokens=4)
    assert cut.choices[0].finish_reason == "length"


async def test_forced_calls_are_calls(client) -> None:
    """required gives a list of calls to offered functions, a named function its arguments, streamed and whole."""
    required = await ask(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=150)
    (call,) = required.choices[0].message.tool_calls
    assert required.choices[0].finish_reason == "tool_calls"
    assert required.choices[0].message.content is None
    assert call.function.name in ("get_weather", "get_time")
    assert json.loads(call.function.arguments)["unit"] in ("C", "F")
    named = {"type": "function", "function": {"name": "get_time"}}
    whole = await ask(client, tools=TOOLS, tool_choice=named, max_tokens=99)
    (call,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].finish_reason == "stop"
    async with aclosing(await ask(client, tools=TOOLS, tool_choice=named, max_tokens=99, stream=True)) as chunks:
        deltas = [chunk async for chunk in chunks]
    parts = [part for chunk in deltas for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function.name] == ["get_time"]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments


async def test_a_conversation_with_calls_goes_on(client) -> None:
    """Earlier calls and their results are part of the prompt; tools that may be called are shown to the model."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"unit": "C"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    fields: dict[str, Any] = {"model": "toy", "messages": messages, "max_tokens": 5, "temperature": 0}
    plain = await client.chat.completions.create(**fields)
    shown = await client.chat.completions.create(**fields, tools=TOOLS)
    none = await client.chat.completions.create(**fields, tools=TOOLS, tool_choice="none")
    assert shown.usage.prompt_tokens > plain.usage.prompt_tokens == none.usage.prompt_tokens
    assert shown.choices[0].message.content
