"""Wraps the app: mints the request's id, contains crashes, counts the answer and writes its canonical line.

Not for: what an answer says. The id is ours, never the client's.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import h11
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from kvfence.gateway.logs import RequestRecord, describe_crash
from kvfence.gateway.metrics import GatewayMetrics
from kvfence.gateway.responses import INTERNAL
from kvfence.gateway.streams import send_failure

MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HEALTH, READY, METRICS = "/health", "/ready", "/metrics"
FENCE, FENCE_JSON = "/fence", "/fence.json"
OPENAPI = "/openapi.json"

ENFORCING = "x-kvfence-enforcing"
"""Says on every answer of a server that only observes: 0. Others do not send it."""

WATCHED = frozenset({HEALTH, READY, METRICS, FENCE_JSON})
"""Asked every few seconds by machines: counted, and no line is written for them."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"})
_ROUTES = frozenset({MODELS, COMPLETIONS, CHAT, FENCE, OPENAPI}) | WATCHED


class Tracing(Protocol):
    """Takes the spans of a request. Implemented by ``otel.py``. ``counts``: spans by what became of them."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans sent and lost."""
        ...

    def record(self, record: RequestRecord, ended_s: float, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Record a request that has ended; never waits and never fails."""
        ...


class _BrokenConnection(Exception):
    """Nothing can be sent any more."""


class Canonical:
    """ASGI middleware around every route."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: GatewayMetrics,
        log: FilteringBoundLogger,
        tracing: Tracing | None = None,
        *,
        observing: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._metrics, self._log, self._tracing, self._clock = app, metrics, log, tracing, clock
        self._observing = observing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and account for it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        record = RequestRecord(secrets.token_hex(12), route_of(scope["path"]), self._clock(), method)
        scope.setdefault("state", {})["record"] = record
        if record.route not in WATCHED:
            self._metrics.request_began()
        try:
            await self._contain(scope, receive, send, record)
        except BaseException as error:
            record.reason = "shutdown" if isinstance(error, asyncio.CancelledError) else INTERNAL.name
            raise
        finally:
            self._account(record, scope)

    async def _contain(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status, record.responded_s = message["status"], self._clock()
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.id
                if self._observing:
                    headers[ENFORCING] = "0"
            try:
                await send(message)
            except h11.LocalProtocolError:  # what the client sent meanwhile was no HTTP, and was answered so
                raise _BrokenConnection from None

        try:
            await self._app(scope, receive, tagged)
        except _BrokenConnection:
            record.status, record.reason = 400, "broken_request"
        except Exception as error:  # noqa: BLE001 - the last line: uvicorn would log the message, which may hold text
            record.reason = INTERNAL.name
            self._log.error("crash", request_id=record.id, **describe_crash(error))
            if record.status == 0:
                await send_failure(INTERNAL, tagged)

    def _account(self, record: RequestRecord, scope: Scope) -> None:
        """Count the answer, write its line and record its spans: once, however it ended."""
        now_s, record.status = self._clock(), record.status or 499
        self._metrics.request_ended(record.route, record.status, record.reason, counted=record.route not in WATCHED)
        if record.num_answer:
            self._metrics.tokens(record.num_prompt, record.num_answer)
        if record.route in WATCHED:
            return
        self._metrics.stages(record.stages_s(now_s))
        self._log.info("request", **record.fields(now_s))
        if self._tracing is not None:
            self._tracing.record(record, now_s, scope["headers"])


def route_of(path: str) -> str:
    """Name the route in logs and metrics; what is no route of ours has one name."""
    if path.startswith(MODELS + "/"):
        return MODELS
    return path if path in _ROUTES else "other"
