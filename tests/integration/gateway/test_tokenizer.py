"""The gateway on the real tokenizer of a tiny checkpoint; only the workers are fakes."""

import json

import pytest

from kvfence.gateway.translate import TextTokenizer
from kvfence.models.tokenizer import load_tokenizer
from kvfence.models.toy import write_toy_checkpoint
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.unit.gateway.fakes import Running, chat

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> TextTokenizer:
    """The tiny checkpoint's tokenizer."""
    return load_tokenizer(write_toy_checkpoint(tmp_path_factory.mktemp("toy")))


def echo(request):
    """Say the prompt again, one token at a time."""
    return [*(TokensOut((each,)) for each in request.token_ids), EndOut(EndReason.STOP)]


@pytest.mark.parametrize("text", ["The inn on the hill", "naïve café, 12 €", "日本語 and 🦓🦓", "  two  spaces "])
async def test_an_echo_is_the_prompt_itself(tokenizer, text):
    """Whatever the script, a streamed echo of a prompt's tokens is the prompt, in whole characters."""
    running = Running(echo, tokenizer=tokenizer)
    async with running.client() as client:
        body = {"model": "toy", "prompt": text, "stream": True}
        answer = (await client.post("/v1/completions", json=body)).text
    chunks = [json.loads(event.removeprefix("data: ")) for event in answer.split("\n\n")[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert "\N{REPLACEMENT CHARACTER}" not in answer


async def test_a_stop_string_across_tokens_is_not_shown(tokenizer):
    """A stop string of two real tokens ends the answer before it."""
    running = Running(echo, tokenizer=tokenizer)
    async with running.client() as client:
        body = {"model": "toy", "prompt": "up the hill and down", "stop": "hill an"}
        answer = (await client.post("/v1/completions", json=body)).json()
    assert answer["choices"][0] == {"text": "up the ", "index": 0, "logprobs": None, "finish_reason": "stop"}


async def test_the_chat_template_is_applied(tokenizer):
    """A chat is rendered with the checkpoint's own template; its special tokens are not shown."""
    running = Running(echo, tokenizer=tokenizer)
    async with running.client() as client:
        answer = (await client.post(CHAT, json=chat("hi"))).json()
    assert answer["choices"][0]["message"]["content"] == "user\nhi\nassistant\n"


async def test_a_long_prompt_is_refused_with_the_arithmetic(tokenizer):
    """Both ways of being too long give the same error: by bytes alone, and by tokens counted so far."""
    running = Running(echo, tokenizer=tokenizer)
    async with running.client() as client:
        for text in ("x" * 500, "x" * 2_000_000):
            response = await client.post(CHAT, json=chat(text))
            assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
            assert "prefill pages" in response.json()["error"]["message"]
