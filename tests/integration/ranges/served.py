"""Practice servers as tests use them: in this process, with worker processes, asked by two tenants."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
from msgspec import Struct

from kvfence.cli.range_stage import Ask, Practice, practising
from kvfence.ranges.catalogue import RANGES
from kvfence.ranges.orders import Orders

TEXTS = {
    "ada": "ADA-4711 keeps a green boat under the bridge and writes ADA-4711 on every oar.",
    "bob": "BOB-0815 sells clocks in the old market and paints BOB-0815 above the door.",
}


class Said(Struct, frozen=True):
    """One answer. ``code``: of the error, or empty."""

    status: int
    text: str = ""
    code: str = ""
    prompt_tokens: int = 0


class Client:
    """Asks as a tenant."""

    def __init__(self, practice: Practice, key: str) -> None:
        self.key = key
        self._model = practice.model
        self._client = openai.AsyncOpenAI(base_url=f"{practice.address.url}/v1", api_key=key, max_retries=0, timeout=30)

    async def ask(self, text: str, max_tokens: int = 48) -> Said:
        """Ask greedily; a refusal is an answer, too."""
        messages: Any = [{"role": "user", "content": text}]
        try:
            answer = await self._client.chat.completions.create(
                model=self._model, messages=messages, temperature=0, max_tokens=max_tokens
            )
        except openai.APIStatusError as error:
            return Said(error.status_code, code=str(error.code))
        return Said(
            200,
            answer.choices[0].message.content or "",
            prompt_tokens=answer.usage.prompt_tokens if answer.usage else 0,
        )

    async def stream(self, text: str, max_tokens: int = 48) -> AsyncIterator[str]:
        """Ask and take the answer piece by piece."""
        messages: Any = [{"role": "user", "content": text}]
        answer = await self._client.chat.completions.create(
            model=self._model, messages=messages, temperature=0, max_tokens=max_tokens, stream=True
        )
        async with answer:
            async for chunk in answer:
                yield chunk.choices[0].delta.content or ""

    def long_text(self, num_words: int = 150) -> str:
        """Give this tenant's own text, over and over."""
        text = TEXTS[self.key]
        return " ".join([text] * (num_words // len(text.split()) + 1))

    async def fill(self, num_words: int = 150) -> Said:
        """Fill pages with this tenant's own text."""
        return await self.ask(self.long_text(num_words))

    async def close(self) -> None:
        """Let connections go."""
        await self._client.close()


async def until(what: str, holds: Callable[[], object], timeout_s: float = 15.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


class Running(Struct):
    """A practice server and two tenants."""

    practice: Practice
    ada: Client
    bob: Client
    log: io.StringIO


@asynccontextmanager
async def running(name: str, *put_back: str, **orders: Any) -> AsyncIterator[Running]:
    """Run a practice server by name, with guards put back."""
    entry = RANGES[name]
    given = {"fault": entry.fault, "rate": 1.0, "prefill_rate": 0.0, "decode_rate": 0.0, **orders}
    log = io.StringIO()
    async with practising(Ask(entry, Orders(**given), put_back=put_back), log) as practice:
        clients = [Client(practice, key) for key in TEXTS]
        try:
            yield Running(practice, *clients, log)
        finally:
            for client in clients:
                await client.close()
