"""Sends one answer, streamed or whole, for as long as the client is there.

The status waits for the first token or the refusal, so that a refusal is never an event behind a 200. An error after
the first token is an event ``{"error": ...}`` and the end of the stream: no finish_reason and no ``[DONE]``, so that
no client takes it for a full answer. Our own sender instead of a library's: it never logs what it sends, and it waits
until the generation is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from kvfence.gateway.answers import PromptDetails, Shape, Usage, Whole
from kvfence.gateway.logs import RequestRecord, describe_crash
from kvfence.gateway.pieces import Finish, Piece
from kvfence.gateway.responses import INTERNAL, Failure, error_body, error_headers, failure_of
from kvfence.gateway.sessions import Session
from kvfence.protocol.messages import EndReason

SEND_TIMEOUT_S = 60.0
"""A client that takes nothing for so long is given up."""

CLIENT_GONE = "client_gone"
CLIENT_STALLED = "client_stalled"

_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}

Items = AsyncGenerator[Piece | Finish | Failure, None]


class Delivery(Struct, frozen=True):
    """How the client wants its answer.

    ``usage_always``: every chunk has the counts so far. ``headers``: more headers of the answer. ``on_end``: hears how
    many tokens were generated, however it ended.
    """

    shape: Shape
    stream: bool
    with_usage: bool
    page_size: int
    send_timeout_s: float = SEND_TIMEOUT_S
    usage_always: bool = False
    headers: dict[str, str] = {}
    on_end: Callable[[int], None] = lambda _: None


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
            self._delivery.on_end(self._session.clock.num_tokens)

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
        await _send_start(200, _STREAM_HEADERS | self._delivery.headers, send)
        opened: set[int] = set()
        num_finished = await self._send_item(first, opened, send)
        async for item in items:
            if isinstance(item, Failure):
                self._record.reason = item.name
                await _send_event(error_body(item), send)
            else:
                num_finished += await self._send_item(item, opened, send)
        if num_finished == self._session.num_choices:
            await self._send_last(send)
        await _send_body(b"", send, more=False)

    async def _send_item(self, item: Piece | Finish, opened: set[int], send: Send) -> int:
        """Send a choice's next chunk, and before its first one what opens it. Returns: finishes, 0 or 1."""
        shape = self._delivery.shape
        if item.index not in opened:
            opened.add(item.index)
            opening = shape.opening(item.index)
            if opening is not None:
                await _send_event(opening, send)
        usage = self._usage() if self._delivery.usage_always else None
        if isinstance(item, Finish):
            await _send_event(shape.closing(item, usage), send)
            return 1
        if item:
            await _send_event(shape.piece(item, usage), send)
        return 0

    async def _send_last(self, send: Send) -> None:
        """Every choice is whole: the counts, and the word that says so."""
        if self._delivery.with_usage:
            await _send_event(self._delivery.shape.counts(self._usage()), send)
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
        """Keep everything until its end is known: half an answer is never given as a whole one."""
        wholes = [Whole() for _ in range(self._session.num_choices)]
        _keep(first, wholes)
        failure: Failure | None = None
        async for item in items:
            if isinstance(item, Failure):
                failure = item
            else:
                _keep(item, wholes)
        if failure is None and not all(whole.reason for whole in wholes):
            failure = INTERNAL
        if failure is not None:
            self._record.reason = failure.name
            await send_failure(failure, send)
            return
        body = self._delivery.shape.whole(wholes, self._usage())
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await _send_start(200, headers | self._delivery.headers, send)
        await _send_body(body, send, more=False)

    def _usage(self) -> Usage:
        num_prompt, num_answer = len(self._session.request.token_ids), self._session.clock.num_tokens
        details = PromptDetails(self._session.clock.num_cached)
        return Usage(num_prompt, num_answer, num_prompt + num_answer, details)


def _keep(item: Piece | Finish, wholes: list[Whole]) -> None:
    if isinstance(item, Finish):
        wholes[item.index].reason = item.reason
    else:
        wholes[item.index].add(item)


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
