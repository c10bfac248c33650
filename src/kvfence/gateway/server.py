"""Listens: a socket taken early, and uvicorn inside a loop that is already running.

Not for: what is served (``app.py``) or signals (``cli/serve.py`` decides when to stop).
"""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager

import h11
import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvfence.core.errors import SettingsError

CONNECTIONS_MAX = 1024
BACKLOG = 256
STOP_TIMEOUT_S = 5
"""Seconds that open requests are given to end when the server stops."""


HEAD_TIMEOUT_S = 30.0
"""A connection on which no request has begun for so long is closed, or a few idle ones would keep everyone out."""


_NO_HTTP = ((b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"))


class Address(Struct, frozen=True):
    """Where a server listens; the port is the real one where 0 was asked for."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def bind(host: str, port: int) -> socket.socket:
    """Take the port now, before anything slow starts; connections wait until ``serving``.

    Raises:
        SettingsError: the port is taken or not allowed, or the host is none of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise SettingsError([f"--host {host} is not an address of this machine; use 127.0.0.1"]) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError([_explain(error, host, port)]) from None
    listener.setblocking(False)
    return listener


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} is taken on {host}: stop what listens there, or choose another (0: any free port)"
    if error.errno == errno.EACCES:
        return f"--port {port} needs rights this process has not: choose one above 1023"
    return f"--host {host}, --port {port}: cannot listen there ({error.strerror}); use 127.0.0.1"


def address_of(listener: socket.socket) -> Address:
    """Say where a socket listens."""
    host, port = listener.getsockname()[:2]
    return Address(str(host), int(port))


class _Connection(H11Protocol):
    """Waits for the head of a request, the first or the next, no longer than a bound; uvicorn's own ends at a byte."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._waiting is not None:
            self._waiting.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Say that it was no HTTP, with the headers that every answer of this server has."""
        headers = [*_NO_HTTP, *self.server_state.default_headers]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=msg.encode("ascii")), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait_for_head(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]  # None before the first
            self.transport.close()


class _Server(uvicorn.Server):
    """Leaves signals to whoever owns the process, and says when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answers.set()


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listener: socket.socket,
    stop_timeout_s: int = STOP_TIMEOUT_S,
    headers: tuple[tuple[str, str], ...] = (),
) -> AsyncIterator[Address]:
    """Serve while the block runs; leaving it ends open requests, within a bound, and closes the socket.

    ``headers``: stand on every answer, also on those that no route gives.
    """
    server = _Server(_configure(app, stop_timeout_s, headers))
    address = address_of(listener)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _first(asyncio.ensure_future(server.answers.wait()), running)
        yield address
    finally:
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        listener.close()


async def _first(answers: asyncio.Future[bool], running: asyncio.Future[None]) -> None:
    """Wait until the server answers; raise what stopped it instead."""
    waiting: set[asyncio.Future[bool] | asyncio.Future[None]] = {answers, running}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not answers.done():
        answers.cancel()
        running.result()


def _configure(app: ASGIApp, stop_timeout_s: int, headers: tuple[tuple[str, str], ...]) -> uvicorn.Config:
    """No access log (the canonical line is ours), no name of the server, no proxy headers, no websockets."""
    return uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=list(headers),
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=stop_timeout_s,
        timeout_keep_alive=30,
    )
