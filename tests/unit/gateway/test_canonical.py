"""The canonical line: exactly one for each request, however it ends, in one shape."""

import asyncio
import io
from collections.abc import AsyncIterator

import httpx
import pytest

from kvfence.core.errors import RemoteProtocolError
from kvfence.gateway.logs import open_log
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from kvfence.runtime.stages import STAGES
from tests.unit.gateway.fakes import Event, FakeGenerations, Running, Script, chat, end, say

CHAT = "/v1/chat/completions"
MARKER = "ZEBRA-MARKER"
FIELDS = {
    "event", "level", "timestamp", "request_id", "tenant", "route", "status", "reason", "prompt_tokens",
    "answer_tokens", "ttft_ms", "duration_ms",
}  # fmt: skip
WAY = {"prefill", "decode", "attempts", "stage", "refusals", *(f"{stage}_ms" for stage in STAGES)}
HALF: list[Event] = [TokensOut(tuple(b"half"))]

ENDINGS: dict[str, tuple[Script, int, str]] = {
    "whole": (say("Paris"), 200, "ok"),
    "cut off at max_tokens": (say("x" * 500), 200, "ok"),
    "queue full": (end(EndReason.QUEUE_FULL, 2), 429, "queue_full"),
    "no worker": (end(EndReason.NO_WORKER), 503, "no_worker"),
    "deadline before the first token": (end(EndReason.DEADLINE), 504, "deadline"),
    "bytes that do not match": (end(EndReason.DIGEST_MISMATCH), 500, "digest_mismatch"),
    "worker lost in the middle": (lambda _: [*HALF, EndOut(EndReason.WORKER_LOST)], 503, "worker_lost"),
    "crash": (lambda _: [*HALF, ValueError(MARKER)], 500, "internal_error"),
    "broken off without an end": (lambda _: HALF, 500, "generation_broke_off"),
}


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_ending_of_a_generation_has_one_line(name: str, stream: bool) -> None:
    """One line with every field, the status the client saw and the reason, and no content."""
    script, status, reason = ENDINGS[name]
    running = Running(script)
    async with running.client() as client:
        response = await client.post(CHAT, json=chat(MARKER, stream=stream))
    (line,) = [line for line in running.lines() if line["event"] == "request"]
    assert set(line) == FIELDS | WAY
    assert (line["status"], line["request_id"]) == (response.status_code, response.headers["x-request-id"])
    assert line["reason"] == reason
    assert response.status_code in ({status, 200} if stream else {status})
    assert MARKER not in running.log.getvalue()


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", CHAT, b"not json", 400),
        ("POST", CHAT, b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}', 404),
        ("POST", CHAT, b"x" * 2000, 413),
        ("GET", CHAT, b"", 405),
        ("GET", "/v1/models", b"", 200),
        ("GET", f"/v1/{MARKER}", b"", 404),
        ("POST", "/v1/embeddings", b"{}", 404),
    ],
)
async def test_what_begins_no_generation_has_one_line_without_stages(
    method: str, path: str, content: bytes, status: int
) -> None:
    """Refusals before a generation, and other routes, say so in the same fields."""
    running = Running(say("x"), max_body_bytes=1024)
    async with running.client() as client:
        response = await client.request(method, path, content=content)
    (line,) = running.lines()
    assert response.status_code == line["status"] == status
    assert set(line) == FIELDS
    assert MARKER not in running.log.getvalue()


async def test_a_client_that_leaves_has_one_line() -> None:
    """Before the first token and after it, the line says that the client left."""
    for first in ([], [TokensOut((65,))]):
        running = Running(lambda _, first=first: [*first, asyncio.Event()])
        async with running.client() as client:
            asking = asyncio.create_task(_leave(running, first, client))
            await asking
        (line,) = running.lines()
        assert (line["status"], line["reason"]) == (200 if first else 499, "client_gone")
        assert set(line) == FIELDS | WAY


async def _leave(running: Running, first: list[Event], client: httpx.AsyncClient) -> None:
    """Speak ASGI directly: the transport of httpx cannot hang up."""
    sent, gone = asyncio.Event(), asyncio.Event()
    body = client.build_request("POST", CHAT, json=chat("x", stream=True)).read()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, object]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        if b"A" in bytes(message.get("body", b"")):  # type: ignore[arg-type]
            sent.set()

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [(b"host", b"localhost")], "query_string": b""}
    answering = asyncio.create_task(running.app(scope, receive, send))  # type: ignore[arg-type]
    await running.generations.until_open(1)
    if first:
        await sent.wait()
    gone.set()
    await answering


async def test_a_server_that_stops_writes_the_line_of_what_it_cut() -> None:
    """A cancelled request hears that the server stops, and has its line."""
    running = Running(lambda _: [asyncio.Event()])
    async with running.client() as client:
        asking = asyncio.create_task(client.post(CHAT, json=chat("x")))
        await running.generations.until_open(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    (line,) = running.lines()
    assert (line["status"], line["reason"]) == (503, "shutdown")


async def test_a_server_whose_workers_still_start_writes_a_line() -> None:
    """Nothing is known of the capacity yet: 503, one line."""

    class Starting(FakeGenerations):
        @property
        def capacity(self):  # type: ignore[no-untyped-def]
            raise RemoteProtocolError("the workers are still starting")

        @capacity.setter
        def capacity(self, value: object) -> None:
            """Dropped."""

        async def generate(self, request: object) -> AsyncIterator[TokensOut | EndOut]:
            yield EndOut(EndReason.NO_WORKER)

    running = Running(say("x"), generations=Starting(say("x")))
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x"))
    (line,) = running.lines()
    assert (response.status_code, line["reason"]) == (503, "no_worker")


def test_the_human_form_is_one_line_for_people() -> None:
    """Same event, without braces or colours."""
    file = io.StringIO()
    open_log("console", file).info("request", request_id="abc", status=200, refusals=[])
    (text,) = file.getvalue().splitlines()
    assert "request_id=abc" in text
    assert "status=200" in text
    assert "\x1b" not in text
    assert "{" not in text
