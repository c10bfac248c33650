"""Fakes of what the gateway stands on: a byte tokenizer and generations that follow a script."""

import asyncio
import codecs
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import httpx
from starlette.applications import Starlette

from kvfence.core.ids import RequestId
from kvfence.core.request import Request
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.logs import open_log
from kvfence.gateway.registry import KeyRegistry
from kvfence.models.tool_formats import TOOL_FORMATS, ToolFormat
from kvfence.protocol.admission import Capacity, fits
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut, WorkerState

EOS = 256
CAPACITY = Capacity(page_size=16, context_tokens=256, prefill_pages=16, decode_pages=17)

Event = TokensOut | EndOut | asyncio.Event | Exception
Script = Callable[[Request], Iterable[Event]]


class ByteTokenizer:
    """One token a byte; counts how often it was asked to tokenise."""

    vocab_size = 257
    longest_token_bytes = 1

    takes_tools = True

    def __init__(self, longest_token_bytes: int = 1, tool_format: ToolFormat | None = TOOL_FORMATS[0]) -> None:
        self.longest_token_bytes = longest_token_bytes
        self.tool_format = tool_format
        self.num_encoded = 0

    def encode(self, text: str, num_tokens_max: int, *, add_special: bool = False) -> list[int]:
        self.num_encoded += 1
        return list(text.encode()[: num_tokens_max + 1])

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        if messages[0]["role"] == "assistant":
            raise ValueError("the model's chat template refuses these messages")
        offered = "".join(f"[{tool['function']['name']}]" for tool in tools)
        return offered + "".join(f"<{message['role']}>{message['content']}" for message in messages)

    def detokenizer(self, context: Sequence[int] = (), shown: Sequence[str] = ()) -> "ByteStream":
        return ByteStream()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,)) if token_id < EOS else b"<end>"


class ByteStream:
    """Whole characters out of bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(bytes(each for each in token_ids if each != EOS))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakeGenerations:
    """Follows a script: tokens are yielded, an asyncio event is waited for, an exception is raised."""

    def __init__(self, script: Script, capacity: Capacity = CAPACITY) -> None:
        self.capacity = capacity
        self.script = script
        self.requests: list[Request] = []
        self.left: set[RequestId] = set()
        self.num_open = 0
        self.num_cancelled = 0
        self.worker_state = "ready"
        self.draining = False
        self._moved = asyncio.Event()

    def workers(self) -> tuple[WorkerState, ...]:
        roles = ("prefill", "decode")
        return tuple(WorkerState(role, role * 4, self.worker_state, 256, 0, f"{role}-0") for role in roles)

    async def generate(self, request: Request) -> AsyncIterator[TokensOut | EndOut]:
        self.requests.append(request)
        self._count(+1)
        ended = False
        try:
            for event in self.script(request):
                if isinstance(event, asyncio.Event):
                    await event.wait()
                elif isinstance(event, Exception):
                    raise event
                else:
                    await asyncio.sleep(0)
                    ended = isinstance(event, EndOut)
                    yield event
        finally:
            self.num_cancelled += not ended
            self._count(-1)

    async def generate_together(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, TokensOut | EndOut]]:
        """Take turns; a request that was left ends at its next turn."""
        running = {index: self.generate(request) for index, request in enumerate(requests)}
        try:
            while running:
                for index, generation in list(running.items()):
                    item = None if requests[index].id in self.left else await anext(generation, None)
                    if item is None:
                        await running.pop(index).aclose()
                    else:
                        yield index, item
        finally:
            for generation in running.values():
                await generation.aclose()

    def leave(self, request: RequestId) -> None:
        self.left.add(request)

    async def until_open(self, num_open: int) -> None:
        """Wait until so many generations are open; give up after five seconds."""
        async with asyncio.timeout(5):
            while self.num_open != num_open:
                self._moved.clear()
                await self._moved.wait()

    def _count(self, change: int) -> None:
        self.num_open += change
        self._moved.set()


def say(text: str, reason: EndReason = EndReason.STOP) -> Script:
    """Admit what fits and answer with this text, one byte a token."""

    def script(request: Request) -> Iterable[Event]:
        sums = fits(CAPACITY, len(request.token_ids), request.max_tokens)
        if not all(fit.holds for fit in sums):
            return [EndOut(EndReason.DOES_NOT_FIT, sums)]
        tokens = text.encode()
        ending = reason if len(tokens) <= request.max_tokens else EndReason.LENGTH
        return [*(TokensOut((each,)) for each in tokens[: request.max_tokens]), EndOut(ending)]

    return script


def end(reason: EndReason, retry_after_s: int = 0) -> Script:
    """End at once."""
    return lambda request: [EndOut(reason, retry_after_s=retry_after_s)]


class Running:
    """An app around fakes, its log and a client that speaks to it without a socket."""

    def __init__(self, script: Script, keys: KeyRegistry | None = None, **deps: Any) -> None:
        self.generations = FakeGenerations(script)
        self.tokenizer = ByteTokenizer()
        self.log = io.StringIO()
        self.deps = GatewayDeps(
            log=open_log("json", self.log),
            keys=keys or KeyRegistry(),
            **{
                "generations": self.generations,
                "tokenizer": self.tokenizer,
                "model": "toy",
                "probe_every_s": 0,
                **deps,
            },
        )
        self.app: Starlette = build_app(self.deps)

    def client(self, **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """A chat body with one message."""
    return {"model": "toy", "messages": [{"role": "user", "content": text}], **fields}
