"""Clients that others wrote, each on what it is used for: text, streams, schemas, tools, log probabilities, errors.

The toy model says noise, so that what is looked at is form: that each client reads what it was sent.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

MODEL = "toy"
MESSAGES: list[Any] = [{"role": "user", "content": "hello there"}]


class Size(pydantic.BaseModel):
    """What structured answers must fill."""

    model_config = pydantic.ConfigDict(extra="forbid")
    width: int = pydantic.Field(ge=1, le=99)
    unit: str = pydantic.Field(pattern="^(mm|cm)$")


def base(url: str) -> str:
    """The address that clients take."""
    return f"{url}/v1"


# ---- the official client


@pytest.fixture
def client(url: str):
    """The official client, synchronous."""
    with openai.OpenAI(base_url=base(url), api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_openai_text(client: openai.OpenAI) -> None:
    """Whole and streamed answers agree, with counts, choices and log probabilities."""
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 12, "seed": 4, "n": 2}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert sum(len(choice.logprobs.content) for choice in whole.choices) == whole.usage.completion_tokens
    texts = ["", ""]
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    text = client.completions.create(model=MODEL, prompt="once", max_tokens=5, logprobs=2, temperature=0)
    assert len(text.choices[0].logprobs.tokens) == text.usage.completion_tokens


def test_openai_streaming_helper(client: openai.OpenAI) -> None:
    """The client's own stream helper follows content, schema and log probabilities to their end."""
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Size, logprobs=True, seed=2
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Size)


def test_openai_tools(client: openai.OpenAI) -> None:
    """A pydantic tool is called with arguments that fill it, whole and streamed."""
    tool = openai.pydantic_function_tool(Size, name="set_size")
    choice: Any = {"type": "function", "function": {"name": "set_size"}}
    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, tools=[tool], tool_choice=choice, seed=1)
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Size)
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False, seed=1
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert isinstance(done[0].parsed_arguments, Size)
    assert final.choices[0].finish_reason == "tool_calls"


def test_openai_errors(client: openai.OpenAI) -> None:
    """Each refusal is the client's own error class, with code and field."""
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="word " * 3000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    for ask in (
        lambda: client.embeddings.create(model=MODEL, input="x"),
        lambda: client.responses.create(model=MODEL, input="x"),
        lambda: client.moderations.create(input="x"),
        lambda: client.images.generate(prompt="x"),
        lambda: client.batches.list(),
    ):
        with pytest.raises(openai.NotFoundError) as elsewhere:
            ask()
        assert elsewhere.value.code == "not_supported"
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


async def _many(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=base(url), api_key="none", max_retries=0, timeout=60) as client:

        async def ask(seed: int) -> str:
            stream = await client.completions.create(model=MODEL, prompt="go", max_tokens=20, seed=seed, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        return await asyncio.gather(*(ask(number % 4) for number in range(16)))


def test_openai_async(url: str) -> None:
    """Sixteen streams at once: the same seed reads the same, whoever else asks."""
    texts = asyncio.run(_many(url))
    assert texts == texts[:4] * 4
    assert len(set(texts)) == 4


# ---- langchain


def test_langchain(url: str) -> None:
    """Text, streams, structured output by schema and by function, bound tools, and log probabilities."""
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=base(url), api_key="none", max_retries=0, max_tokens=300, seed=1)
    answer = model.invoke("hello there")
    assert answer.usage_metadata["output_tokens"] > 0
    streamed = list(model.stream("hello there"))
    assert "".join(chunk.content for chunk in streamed) == answer.content
    assert model.bind(logprobs=True).invoke("hi").response_metadata["logprobs"]["content"]
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Size, method=method).invoke("hello"), Size)
    called = model.bind_tools([Size], tool_choice="required", parallel_tool_calls=False).invoke("hello")
    assert called.tool_calls[0]["name"] == "Size"
    assert Size(**called.tool_calls[0]["args"])
    assert asyncio.run(model.ainvoke("hello there")).content == answer.content


# ---- pydantic-ai


def test_pydantic_ai(url: str) -> None:
    """An agent gets its output type through a tool that it is made to call, and by a native schema."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base(url), api_key="none"))
    for output in (Size, NativeOutput(Size)):
        ran = Agent(model, output_type=output).run_sync("hello", model_settings={"max_tokens": 300, "seed": 1})
        assert isinstance(ran.output, Size)


# ---- Hugging Face's own client, which shares no code with the official one


def test_huggingface_hub(url: str) -> None:
    """Text, streams, tools and log probabilities through a client of another make."""
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=base(url), api_key="none")
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 10, "seed": 3}
    whole = client.chat_completion(**asked, logprobs=True, top_logprobs=2)
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    streamed = [chunk.choices[0].delta.content or "" for chunk in client.chat_completion(**asked, stream=True)]
    assert "".join(streamed) == whole.choices[0].message.content
    schema = {"name": "Size", "schema": Size.model_json_schema(), "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    shaped = client.chat_completion(**{**asked, "max_tokens": 300}, response_format=form)
    assert Size(**json.loads(shaped.choices[0].message.content))
    tool = {"type": "function", "function": {"name": "set_size", "parameters": Size.model_json_schema()}}
    called = client.chat_completion(**{**asked, "max_tokens": 300}, tools=[tool], tool_choice="required")
    (first, *_) = called.choices[0].message.tool_calls
    assert Size(**json.loads(first.function.arguments))


# ---- the llm command


def test_llm_command(url: str, tmp_path: Path) -> None:
    """The command that people pipe into streams an answer, and fills a schema."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: toy\n  model_name: {MODEL}\n  api_base: {base(url)}\n  supports_schema: true\n"
    )
    command = [str(Path(sys.executable).with_name("llm")), "-m", "toy", "-o", "seed", "1", "-o", "max_tokens", "200"]
    environment = {"LLM_USER_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(*arguments: str) -> str:
        given = [*command, "--key", "none", *arguments, "hello"]
        ran = subprocess.run(given, capture_output=True, text=True, timeout=90, env=environment)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert run().strip() == run("--no-stream").strip()
    assert Size(**json.loads(run("--schema", json.dumps(Size.model_json_schema()))))
