"""Sends one answer, streamed or whole, for as long as the client is there.

The status waits for the first token or the refusal, so that a refusal is never an event behind a 200. An error after
the first token is an event ``{"error": ...}`` and the end of the stream: no finish_reason and no ``[DONE]``, so that
no client takes it for a full answer. Our own sender instead of a library's: it never logs what it sends, and it waits
until the generation is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from kvfence.gateway.logs import RequestRecord, describe_crash
from kvfence.gateway.openai import Shape, Usage
from kvfence.gateway.responses import INTERNAL, Failure, error_body, error_headers, failure_of
from kvfence.gateway.sessions import Finish, Piece, Session
from kvfence.protocol.messages import EndReason

SEND_TIMEOUT_S = 60.0
"""A client that takes nothing for so long is given up."""

CLIENT_GONE = "client_gone"
CLIENT_STALLED = "client_stalled"

_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}

Items = AsyncGenerator[Piece | Finish | Failure, None]


class Delivery(Struct, frozen=True):
    """How the client wants its answer."""

    shape: Shape
    stream: bool
    with_usage: bool
    page_size: int
    send_timeout_s: float = SEND_TIMEOUT_S


class GenerationResponse(Response):
    """An ASGI response that pulls one session; leaving it, however, closes the generation."""

    def __init__(self, session: Session, delivery: Delivery, record: RequestRecord, log: FilteringBoundLogger) -> None:
        self.background = None
        self._session = session
        self._delivery = delivery
        self._record = record
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's form
        """Answer, unless the client goes first."""
        send = _bound(send, self._delivery.send_timeout_s)
        try:
            async with aclosing(self._session.read(self._delivery.page_size)) as items:
                if not await _while_connected(self._answer(items, send), receive):
                    self._record.reason = CLIENT_GONE
        except TimeoutError:
            self._record.reason = CLIENT_STALLED
        except asyncio.CancelledError:  # only a server that stops cancels requests: say so, and go
            await self._say_stopping(send)
        finally:
            self._record.num_answer = self._session.clock.num_tokens
            self._record.ttft_s = self._session.clock.ttft_s

    async def _answer(self, items: Items, send: Send) -> None:
        async with aclosing(self._contain(items)) as contained:
            first = await anext(contained)
            if isinstance(first, Failure):
                self._record.reason = first.name
                await send_failure(first, send)
            elif self._delivery.stream:
                await self._stream(first, contained, send)
            else:
                await self._collect(first, contained, send)

    async def _contain(self, items: Items) -> Items:
        """Turn a crash of the generation into a Failure: the client hears of it even in mid-stream."""
        try:
            async for item in items:
                yield item
        except Exception as error:  # noqa: BLE001 - the last line before the client
            self._log.error("crash", request_id=self._record.id, **describe_crash(error))
            yield INTERNAL

    async def _stream(self, first: Piece | Finish, items: Items, send: Send) -> None:
        await _send_start(200, _STREAM_HEADERS, send)
        opening = self._delivery.shape.opening()
        if opening is not None:
            await _send_event(opening, send)
        await self._send_item(first, send)
        async for item in items:
            if isinstance(item, Failure):
                self._record.reason = item.name
                await _send_event(error_body(item), send)
            else:
                await self._send_item(item, send)
        await _send_body(b"", send, more=False)

    async def _send_item(self, item: Piece | Finish, send: Send) -> None:
        shape = self._delivery.shape
        if isinstance(item, Piece):
            if item.text:
                await _send_event(shape.text(item.text), send)
            return
        await _send_event(shape.closing(item.reason), send)
        if self._delivery.with_usage:
            await _send_event(shape.counts(self._usage()), send)
        await _send_event(b"[DONE]", send)

    async def _say_stopping(self, send: Send) -> None:
        stopping = failure_of(EndReason.SHUTDOWN)
        self._record.reason = stopping.name
        if self._record.status == 0:
            await send_failure(stopping, send)
        elif self._delivery.stream:
            await _send_event(error_body(stopping), send)
            await _send_body(b"", send, more=False)

    async def _collect(self, first: Piece | Finish, items: Items, send: Send) -> None:
        """Keep the text until its end is known: half an answer is never given as a whole one."""
        texts = [first.text] if isinstance(first, Piece) else []
        last: Piece | Finish | Failure = first
        async for last in items:
            if isinstance(last, Piece):
                texts.append(last.text)
        if isinstance(last, Finish):
            body = self._delivery.shape.whole("".join(texts), last.reason, self._usage())
            await _send_start(200, {"content-type": "application/json", "content-length": str(len(body))}, send)
            await _send_body(body, send, more=False)
            return
        failure = last if isinstance(last, Failure) else INTERNAL
        self._record.reason = failure.name
        await send_failure(failure, send)

    def _usage(self) -> Usage:
        num_prompt, num_answer = len(self._session.request.token_ids), self._session.clock.num_tokens
        return Usage(num_prompt, num_answer, num_prompt + num_answer)


async def send_failure(failure: Failure, send: Send) -> None:
    """Send an error as a whole response."""
    body = error_body(failure)
    headers = {**error_headers(failure), "content-length": str(len(body))}
    await _send_start(failure.status, headers, send)
    await _send_body(body, send, more=False)


async def _while_connected(answer: Coroutine[None, None, None], receive: Receive) -> bool:
    """Run to its end, or stop it when the client goes. Returns: did it end by itself?"""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        ended = answering.done()
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)
    if ended:
        answering.result()
    return ended


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_start(status: int, headers: dict[str, str], send: Send) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_event(data: bytes, send: Send) -> None:
    await _send_body(b"data: " + data + b"\n\n", send, more=True)


async def _send_body(body: bytes, send: Send, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _bound(send: Send, timeout_s: float) -> Send:
    async def send_in_time(message: Message) -> None:
        async with asyncio.timeout(timeout_s):
            await send(message)

    return send_in_time
