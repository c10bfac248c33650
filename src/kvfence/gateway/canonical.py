"""Wraps the app: mints the request's id, contains crashes, counts the answer and writes its canonical line.

Not for: what an answer says. The id is ours, never the client's.
"""

import asyncio
import secrets
import time
from collections.abc import Callable

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
EMBEDDINGS = "/v1/embeddings"
HEALTH, READY, METRICS = "/health", "/ready", "/metrics"

WATCHED = frozenset({HEALTH, READY, METRICS})
"""Asked every few seconds by machines: counted, and no line is written for them."""

_ROUTES = frozenset({MODELS, COMPLETIONS, CHAT, EMBEDDINGS}) | WATCHED


class Canonical:
    """ASGI middleware around every route."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: GatewayMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._metrics, self._log, self._clock = app, metrics, log, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and account for it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(secrets.token_hex(12), route_of(scope["path"]), self._clock())
        scope.setdefault("state", {})["record"] = record
        self._metrics.request_began()
        try:
            await self._contain(scope, receive, send, record)
        except BaseException as error:
            record.reason = "shutdown" if isinstance(error, asyncio.CancelledError) else INTERNAL.name
            raise
        finally:
            self._account(record)

    async def _contain(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.id
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception as error:  # noqa: BLE001 - the last line: uvicorn would log the message, which may hold text
            record.reason = INTERNAL.name
            self._log.error("crash", request_id=record.id, **describe_crash(error))
            if record.status == 0:
                await send_failure(INTERNAL, tagged)

    def _account(self, record: RequestRecord) -> None:
        record.status = record.status or 499
        self._metrics.request_ended(record.route, record.status, record.reason)
        if record.num_answer:
            self._metrics.tokens(record.num_prompt, record.num_answer)
        if record.route not in WATCHED:
            self._log.info("request", **record.fields(self._clock()))


def route_of(path: str) -> str:
    """Name the route in logs and metrics; what is no route of ours has one name."""
    if path.startswith(MODELS + "/"):
        return MODELS
    return path if path in _ROUTES else "other"
