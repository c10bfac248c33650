"""Clients of a server over HTTP, as anybody writes them, and a gateway over running workers to ask.

What a client saw is one of: a full answer (finish_reason and [DONE]), an error in OpenAI's shape with its status, an
error event in the stream, or a connection that broke.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.logs import open_log
from kvfence.gateway.registry import KeyRegistry
from kvfence.gateway.server import bind, serving
from tests.integration.runtime.arithmetic import expected_tokens
from tests.integration.runtime.pairs import Pair, Scene, running_pair
from tests.unit.gateway.fakes import ByteTokenizer

ANSWER_S = 5.0
"""Within this a client hears what became of its request after a worker was lost."""


class LetterTokenizer(ByteTokenizer):
    """Bytes in, one letter a token out: the arithmetic model has more tokens than bytes."""

    def detokenizer(self, *_: Any) -> Any:
        return Letters()


class Letters:
    """One letter a token."""

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join(chr(65 + each % 26) for each in token_ids)

    def flush(self) -> str:
        return ""


class Seen(Struct):
    """What one client saw. ``status`` is 0 before the first byte; ``error`` is the body's or the event's."""

    prompt: str
    max_tokens: int
    status: int = 0
    text: str = ""
    finish_reason: str = ""
    done: bool = False
    error: dict[str, Any] | None = None
    retry_after_s: int = 0
    broke: bool = False
    ended_s: float = 0.0

    @property
    def right(self) -> bool:
        """Is all that was shown what the model says of this prompt alone?"""
        tokens = expected_tokens(self.prompt.encode(), self.max_tokens)
        return Letters().push(tokens).startswith(self.text)

    @property
    def whole(self) -> bool:
        """Is it a full answer, and a right one?"""
        full = self.status == 200 and self.done and self.finish_reason == "length" and self.error is None
        return full and self.right and len(self.text) == self.max_tokens

    @property
    def refused(self) -> bool:
        """503 before the first token, with what OpenAI's errors have and when to ask again."""
        shape = self.error is not None and {"message", "type", "param", "code"} <= set(self.error)
        return self.status == 503 and shape and self.retry_after_s > 0 and not self.text and not self.done

    @property
    def broken_off(self) -> bool:
        """An error event after the first token, nothing wrong before it, and never a normal finish."""
        shape = self.error is not None and {"message", "type", "param", "code"} <= set(self.error)
        return self.status == 200 and shape and not self.done and not self.finish_reason and self.right


class Client:
    """Streams completions from one server."""

    def __init__(self, url: str, model: str = "toy") -> None:
        self.url = url
        self._model = model
        self._http = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(60.0), limits=httpx.Limits())

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    def start(self, prompt: str, max_tokens: int) -> tuple[Seen, "asyncio.Task[None]"]:
        """Begin a request; the task ends with it."""
        seen = Seen(prompt, max_tokens)
        return seen, asyncio.create_task(self._stream(seen))

    async def ask(self, prompt: str, max_tokens: int) -> Seen:
        """Ask and wait for the end."""
        seen, task = self.start(prompt, max_tokens)
        await task
        return seen

    async def _stream(self, seen: Seen) -> None:
        body = {
            "model": self._model,
            "prompt": seen.prompt,
            "max_tokens": seen.max_tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as response:
                seen.status = response.status_code
                seen.retry_after_s = int(response.headers.get("retry-after", 0))
                if response.status_code == 200:
                    async for line in response.aiter_lines():
                        _note(seen, line)
                else:
                    seen.error = json.loads(await response.aread())["error"]
        except httpx.HTTPError:
            seen.broke = True
        seen.ended_s = time.monotonic()


def _note(seen: Seen, line: str) -> None:
    if not line.startswith("data: "):
        return
    data = line.removeprefix("data: ")
    if data == "[DONE]":
        seen.done = True
        return
    event = json.loads(data)
    if "error" in event:
        seen.error = event["error"]
        return
    for choice in event["choices"]:
        seen.text += choice["text"]
        seen.finish_reason = choice["finish_reason"] or seen.finish_reason


class Crowd:
    """Clients who ask for short answers, one after the other in each lane, for as long as the block runs."""

    LANES = 3

    def __init__(self, client: Client) -> None:
        self.seen: list[Seen] = []
        self._client = client
        self._over = False

    async def _lane(self, number: int) -> None:
        count = 0
        while not self._over:
            count += 1
            prompt = chr(97 + number) * (10 + (7 * count) % 40)
            self.seen.append(await self._client.ask(prompt, 5 + count % 9))
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def around(self) -> AsyncIterator["Crowd"]:
        """Ask while the block runs; afterwards every request has ended."""
        lanes = [asyncio.create_task(self._lane(number)) for number in range(self.LANES)]
        try:
            yield self
        finally:
            self._over = True
            await asyncio.gather(*lanes)


@asynccontextmanager
async def http_server(pair: Pair) -> AsyncIterator[str]:
    """Serve a running pair on a free port. Gives: its address."""
    dispatcher = pair.supervisor.dispatcher
    with (pair.faults.path / "access.log").open("w") as log:
        deps = GatewayDeps(
            generations=dispatcher,
            tokenizer=LetterTokenizer(),
            model="toy",
            log=open_log("json", log),
            keys=KeyRegistry(),
            journeys=dispatcher.journeys,
            probe_every_s=0,
        )
        async with serving(build_app(deps), bind("127.0.0.1", 0), 1) as address:
            yield address.url


class Site(Struct):
    """A running pair behind HTTP."""

    pair: Pair
    client: Client


@asynccontextmanager
async def running_site(scene: Scene, folder: Path) -> AsyncIterator[Site]:
    """Run workers and a gateway in this process."""
    async with running_pair(scene, folder) as pair, http_server(pair) as url:
        client = Client(url)
        try:
            yield Site(pair, client)
        finally:
            await client.close()
