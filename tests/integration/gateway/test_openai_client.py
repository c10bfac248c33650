"""The official client against a real server on loopback; only the workers are fakes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from kvfence.gateway.registry import load_keys
from kvfence.gateway.server import bind, serving
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.unit.gateway.fakes import Running, end, say

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@asynccontextmanager
async def served(running: Running, key: str = "unused") -> AsyncIterator[openai.AsyncOpenAI]:
    """Serve on a free port and give the official client."""
    async with (
        serving(running.app, bind("127.0.0.1", 0)) as address,
        openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=key, max_retries=0, timeout=20) as client,
    ):
        yield client


@asynccontextmanager
async def served_plainly(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    """Serve on a free port and give a plain client."""
    async with (
        serving(running.app, bind("127.0.0.1", 0)) as address,
        httpx.AsyncClient(base_url=address.url, timeout=20) as client,
    ):
        yield client


async def test_a_streamed_chat_names_paris():
    """Streamed text arrives in pieces, with the reason and the counts at the end."""
    async with served(Running(say("Paris, of course."))) as client:
        stream = await client.chat.completions.create(
            model="toy", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Paris, of course."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 17
    assert len({chunk.id for chunk in chunks}) == 1


async def test_chat_and_completions_not_streamed():
    """Both routes give whole answers; the first stop string ends one."""
    async with served(Running(say("one two three"))) as client:
        chat = await client.chat.completions.create(model="toy", messages=MESSAGES, max_completion_tokens=7)
        text = await client.completions.create(model="toy", prompt="count", stop=["two"])
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("one two", "length")
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("one ", "stop")
    assert text.usage is not None
    assert text.usage.prompt_tokens == 5


async def test_a_streamed_completion():
    """Completions stream as well."""
    async with served(Running(say("abc"))) as client:
        stream = await client.completions.create(model="toy", prompt=[1, 2, 3], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


async def test_models_are_listed():
    """The client finds the model."""
    async with served(Running(say(""))) as client:
        assert [model.id async for model in client.models.list()] == ["toy"]
        assert (await client.models.retrieve("toy")).id == "toy"


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (EndReason.DOES_NOT_FIT, openai.BadRequestError),
        (EndReason.QUEUE_FULL, openai.RateLimitError),
        (EndReason.NO_WORKER, openai.InternalServerError),
        (EndReason.STAMP_MISMATCH, openai.InternalServerError),
        (EndReason.DEADLINE, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_endings_are_the_clients_errors(reason, error, stream):
    """Each ending raises the client's own error class, streamed or not."""
    async with served(Running(end(reason))) as client:
        with pytest.raises(error):
            await client.chat.completions.create(model="toy", messages=MESSAGES, stream=stream)


async def test_wrong_requests_are_the_clients_errors(tmp_path):
    """A wrong key, model, field and route each raise what OpenAI's own server makes the client raise."""
    (tmp_path / "keys").write_text("sk-good acme\n")
    running = Running(say("x"), load_keys(tmp_path / "keys"))
    async with served(running, key="sk-bad") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        good = client.with_options(api_key="sk-good")
        with pytest.raises(openai.NotFoundError) as unknown:
            await good.chat.completions.create(model="gpt-9", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as several:
            await good.chat.completions.create(model="toy", messages=MESSAGES, n=17)
        with pytest.raises(openai.NotFoundError):
            await good.embeddings.create(model="toy", input="x")
    assert unknown.value.code == "model_not_found"
    assert several.value.param == "n"


async def test_an_error_in_mid_stream_raises():
    """The client raises at the error event, so that half an answer never looks whole."""
    running = Running(lambda _: [TokensOut(tuple(b"half")), EndOut(EndReason.COUNT_MISMATCH)])
    async with served(running) as client:
        stream = await client.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
        chunks = aiter(stream)
        first, second = await anext(chunks), await anext(chunks)
        with pytest.raises(openai.APIError) as caught:
            await anext(chunks)
    assert (first.choices[0].delta.role, second.choices[0].delta.content) == ("assistant", "half")
    assert caught.value.code == "kv_integrity"


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_cancels_the_generation(stream):
    """A client that closes its connection, or gives up waiting, cancels upstream."""
    running = Running(lambda _: [TokensOut((65,)), asyncio.Event()])
    async with served(running) as client:
        if stream:
            answer = await client.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
            await anext(aiter(answer))
            await answer.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                await client.with_options(timeout=0.3).chat.completions.create(model="toy", messages=MESSAGES)
        await running.generations.until_open(0)
    assert running.generations.num_cancelled == 1
    assert running.lines()[-1]["reason"] == "client_gone"


async def test_many_clients_at_once_get_their_own_answers():
    """Thirty-two streams at once: each client reads what was said to it."""

    def script(request):
        tail = bytes(request.token_ids)[-2:]
        return [*(TokensOut((each,)) for each in tail * 3), EndOut(EndReason.STOP)]

    async with served(Running(script)) as client:

        async def ask(number: int) -> str:
            prompt = f"number {number:02}"
            stream = await client.completions.create(model="toy", prompt=prompt, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        answers = await asyncio.gather(*(ask(number) for number in range(32)))
    assert answers == [f"{number:02}" * 3 for number in range(32)]


async def test_large_bodies_are_answered_soon():
    """2 MB of prompt is refused within a second with the arithmetic; 50 MB is a 413 that the client sees."""
    running = Running(say("x"))
    async with served_plainly(running) as client:
        began = time.perf_counter()
        long = await client.post("/v1/completions", json={"model": "toy", "prompt": "word " * 400_000})
        took_s = time.perf_counter() - began
        huge = await client.post("/v1/completions", content=b"x" * 50_000_000)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert took_s < 1.0
    assert (huge.status_code, huge.json()["error"]["code"]) == (413, "body_too_large")
    assert running.tokenizer.num_encoded == 0


async def test_the_probe_makes_the_server_ready():
    """Started with a probe, the server becomes ready by a generation of its own."""
    running = Running(say("xyz"), probe_every_s=10.0)
    async with served_plainly(running) as client:
        for _ in range(500):
            if (await client.get("/ready")).status_code == 200:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("never ready")
    assert [request.tenant for request in running.generations.requests] == ["@probe"]
