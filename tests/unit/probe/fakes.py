"""Servers that speak enough HTTP to be asked: real sockets on loopback, every byte in the test's hands."""

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import h11
from msgspec import Struct, field

from kvfence.probe.door import Api, Door


class Seen(Struct):
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Wire:
    """The way back to one client."""

    def __init__(self, connection: h11.Connection, writer: asyncio.StreamWriter) -> None:
        self._connection, self._writer = connection, writer

    async def _put(self, event: Any) -> None:
        self._writer.write(self._connection.send(event) or b"")
        await self._writer.drain()

    async def head(self, status: int, headers: dict[str, str]) -> None:
        """Send status and headers."""
        kind = h11.Response(status_code=status, headers=list(headers.items()))
        await self._put(kind)

    async def send(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._put(h11.Data(data=data))

    async def end(self) -> None:
        """End the body as it should be."""
        await self._put(h11.EndOfMessage())

    async def answer(self, status: int, body: Any, **headers: str) -> None:
        """Give one whole answer; a dict is sent as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {name.replace("_", "-"): each for name, each in headers.items()}
        await self.head(status, named | {"content-length": str(len(raw))})
        await self.send(raw)
        await self.end()

    async def events(self, *frames: Any, done: bool = True, pause_s: float = 0.0, at_once: bool = False) -> None:
        """Stream frames; ``at_once``: all in one write, as a proxy that held them back."""
        await self.head(200, {"content-type": "text/event-stream"})
        lines = [f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n".encode() for each in frames]
        lines += [b"data: [DONE]\n\n"] * done
        for line in [b"".join(lines)] if at_once else lines:
            await self.send(line)
            for _ in range(1 if pause_s else 0):
                await asyncio.sleep(pause_s)
        await self.end()


Handler = Callable[[Seen, Wire], Awaitable[None]]


class Fake:
    """A server on a free port of loopback; ``tls``: what it shows a certificate with."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self._handler, self._tls = handler, tls
        self.seen: list[Seen] = []
        self.left = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> "Fake":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._one(connection, reader, writer):
                connection.start_next_cycle()
        except (h11.ProtocolError, OSError, asyncio.CancelledError):
            self.left.set()
        finally:
            writer.close()

    async def _one(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        request, body = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(1 << 16)
                if not data and request is None:
                    return False
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                break
            else:
                return False
        headers = {name.decode(): value.decode() for name, value in request.headers}
        seen = Seen(request.method.decode(), request.target.decode(), headers, json.loads(body) if body else {})
        self.seen.append(seen)
        await self._handler(seen, Wire(connection, writer))
        return connection.our_state is h11.DONE


@contextmanager
def in_thread(servers: AbstractAsyncContextManager[Any]) -> Iterator[None]:
    """Serve in a thread of its own, with a loop of its own."""
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with servers:
            ready.set()
            await over.wait()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def door_to(fake: Fake, api: Api | None = Api.COMPLETIONS, **more: Any) -> Door:
    """The door of a fake, with one tenant or those given."""
    keys = more.pop("keys", {"tenant-1": "", "tenant-2": "", "tenant-3": "", "tenant-4": ""})
    return Door(base_url=fake.url, model="m", keys=keys, api=api, **more)


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    """One frame of a completion's stream."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One frame of a chat's stream."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(prompt: int, answer: int) -> dict[str, Any]:
    """The last frame, with what was counted."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": answer}}


class Model(Struct, kw_only=True):
    """A server that repeats its prompt's lines; a word is a token.

    ``limit``: longer prompts are refused, or held until ``released`` where it ``hangs``; ``hidden``: above it answers
    come from what another caller sent before; ``rate``: tokens of a prompt a second.
    """

    limit: int = 400
    hangs: bool = False
    hidden: int | None = None
    context: int | None = 500
    rate: float | None = None
    has_usage: bool = True
    refuses: tuple[str, ...] = ()
    busy_from: int | None = None
    retry_after: str = "0"
    dies_from: int | None = None
    aside: bool = False
    pages: list[str] = field(default_factory=list)
    asked: int = 0
    cache: dict[str, list[str]] = field(default_factory=dict)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, seen: Seen, wire: Wire) -> None:
        """Answer one request."""
        if seen.method == "GET":
            card = {"id": "m"} | ({"max_model_len": self.context} if self.context else {})
            await wire.answer(200, {"data": [card]})
            return
        self.asked += 1
        if self.dies_from is not None and self.asked >= self.dies_from:
            raise OSError
        if self.busy_from is not None and self.asked >= self.busy_from:
            await wire.answer(429, {"error": {"message": "later"}}, retry_after=self.retry_after)
            return
        for name in self.refuses:
            if name in seen.body:
                await wire.answer(400, {"error": {"message": f"unsupported parameter: {name}"}})
                return
        await self._generate(seen, wire)

    async def _generate(self, seen: Seen, wire: Wire) -> None:
        chat = seen.path.endswith("chat/completions")
        prompt = seen.body["messages"][0]["content"] if chat else seen.body["prompt"]
        count = len(prompt.split())
        if count > self.limit:
            if self.hangs:
                await self.released.wait()
            await wire.answer(400, {"error": {"message": f"maximum context length is {self.limit} tokens"}})
            return
        for rate in (self.rate,) if self.rate else ():
            await asyncio.sleep(count / rate)
        words = self._words(prompt, count)[: seen.body["max_tokens"]]
        texts = [f" {word}" for word in words]
        if not chat:
            frames = [piece(text) for text in texts]
        elif self.aside:
            frames = [delta(reasoning_content=text) for text in texts]
        else:
            frames = [delta(content=text) for text in texts]
        ends = [delta("stop") if chat else piece("", "stop")]
        await self._give(seen, wire, [*frames, *ends, *([usage(count, len(words))] if self.has_usage else [])])

    def _words(self, prompt: str, count: int) -> list[str]:
        body = prompt.split("\n", 1)[1].replace("so ", "").split()
        if self.hidden is not None and count > self.hidden:
            return "".join(self.pages[-2:-1]).split() or ["nothing"]
        self.pages.append(" ".join(body))
        return body

    async def _give(self, seen: Seen, wire: Wire, frames: list[dict[str, Any]]) -> None:
        if seen.body["stream"]:
            await wire.events(*frames)
            return
        part = "message" if seen.path.endswith("chat/completions") else "text"
        texts = [_text(each) for frame in frames for each in frame["choices"]]
        whole = {"content": "".join(texts)} if part == "message" else "".join(texts)
        counted = frames[-1].get("usage") if self.has_usage else None
        choice = {"index": 0, part: whole, "finish_reason": "stop"}
        await wire.answer(200, {"choices": [choice]} | ({"usage": counted} if counted else {}))


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
