"""Sends one canary and hears its answer out: every way in which that can go wrong has a name.

Bounded in bytes and time; no redirect to another host; no proxy from the environment; keys in one header alone.
Not for: how many are open at once (``pacing.py``), reading bodies (``answers.py``).
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
from httpx_sse import EventSource, SSEError
from msgspec import Struct, json

from kvfence.probe.answers import Hearing, all_texts, error_text
from kvfence.probe.door import Api, Dialect, Door
from kvfence.probe.exchange import Ask, Exchange, Trouble

ANSWER_BYTES_MAX = 8 << 20
ERROR_BYTES_MAX = 1 << 16
CONNECT_S = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LATER = frozenset({429, 503, 529})
_DONE = "[DONE]"


class Patience(Struct, frozen=True):
    """How long one answer is waited for. ``leave_s``: when the client leaves before the first token."""

    total_s: float = 330.0
    leave_s: float | None = None


class Heard(Struct, frozen=True):
    """One exchange, and what a refusal's words say the prompt's length is."""

    exchange: Exchange
    counted: int | None = None


class TooMuch(Exception):
    """More bytes than any answer to a canary has, or as many as somebody likes: a packed body."""


class _Bounded(httpx.AsyncByteStream):
    """A stream that ends with an error after so many bytes."""

    def __init__(self, stream: httpx.AsyncByteStream, bytes_max: int) -> None:
        self._stream, self._left = stream, bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise TooMuch
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Client:
    """The endpoint, as callers of several tenants see it. ``on_send`` is called before each request goes out."""

    def __init__(self, door: Door, connections: int, on_send: Callable[[Ask], None] = lambda _: None) -> None:
        self.door, self.dialect = door, Dialect()
        self.api = door.api or Api.COMPLETIONS
        self.on_send = on_send
        self._began_s = time.monotonic()
        limits = httpx.Limits(max_connections=connections + 4, max_keepalive_connections=connections)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        self._http = httpx.AsyncClient(
            verify=door.verify, trust_env=False, follow_redirects=False, limits=limits, timeout=timeout
        )

    @property
    def now_s(self) -> float:
        """Give the run's clock."""
        return time.monotonic() - self._began_s

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, tenant: str) -> Any:
        """Give the JSON that a path below the base URL answers; None where it answers none."""
        try:
            async with asyncio.timeout(CONNECT_S * 2):
                request = self._http.build_request("GET", self.door.base_url + path, headers=self._headers(tenant))
                response = await self._http.send(request, stream=True)
                try:
                    return json.decode(await bounded_body(response, ANSWER_BYTES_MAX))
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.StreamError, ValueError, RecursionError, TimeoutError, TooMuch):
            return None

    async def ask(self, ask: Ask, patience: Patience = Patience()) -> Heard:
        """Send one canary; once more without a field that the server refused by name."""
        heard = await self._once(ask, patience)
        for _ in range(3):
            refused = heard.exchange.status in (400, 422) and heard.exchange.limit_tokens is None
            if not refused or not self.dialect.learn(heard.exchange.message, ask):
                break
            heard = await self._once(ask, patience)
        return heard

    async def _once(self, ask: Ask, patience: Patience) -> Heard:
        self.on_send(ask)
        hearing = Hearing(ask, self.now_s, self.door.masked)
        limit_s = patience.total_s if patience.leave_s is None else min(patience.leave_s, patience.total_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._hear(hearing)
        except TimeoutError:
            _note_end(hearing, limit_s, left=patience.leave_s is not None)
        except asyncio.CancelledError:
            hearing.fail(Trouble.LEFT)
            raise
        except TooMuch:
            hearing.fail(Trouble.MALFORMED, "more bytes than any answer has")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, SSEError, ssl.SSLError, OSError) as error:
            _note_error(hearing, error)
        except Exception as error:  # noqa: BLE001 - a stranger's answer must not cost the record of all the others
            hearing.fail(Trouble.MALFORMED, f"an answer that cannot be read: {type(error).__name__}")
        return Heard(hearing.exchange(self.now_s, self.door.masked_answer), hearing.counted)

    async def _hear(self, hearing: Hearing) -> None:
        ask = hearing.ask
        url = self.door.base_url + self.api.path
        response = await self._post(url, ask)
        hearing.head(response.headers.multi_items())
        try:
            if response.status_code in _REDIRECTS:
                elsewhere = _same_origin(url, response.headers.get("location", ""))
                await response.aclose()
                if elsewhere is None or response.status_code not in (307, 308):
                    hearing.status = response.status_code
                    hearing.fail(Trouble.REFUSED, "a redirect that is not followed: name the address it leads to")
                    return
                response = await self._post(elsewhere, ask)
                hearing.head(response.headers.multi_items())
            await self._read(response, hearing)
        finally:
            await response.aclose()

    async def _post(self, url: str, ask: Ask) -> httpx.Response:
        headers = self._headers(ask.tenant) | {"content-type": "application/json"}
        body = json.encode(self.dialect.body(ask, self.api, self.door.model))
        return await self._http.send(self._http.build_request("POST", url, content=body, headers=headers), stream=True)

    def _headers(self, tenant: str) -> dict[str, str]:
        fixed = {"accept": "text/event-stream, application/json", "accept-encoding": "identity"}
        return fixed | {"user-agent": "kvfence-probe"} | self.door.headers_of(tenant)

    async def _read(self, response: httpx.Response, hearing: Hearing) -> None:
        hearing.status = response.status_code
        if is_packed(response):
            hearing.fail(Trouble.MALFORMED, "a body that is packed, though it was asked for plain")
        elif response.status_code != 200:
            await self._read_refusal(response, hearing)
        elif "text/event-stream" in response.headers.get("content-type", ""):
            await self._read_stream(response, hearing)
        else:
            hearing.body(await bounded_body(response, ANSWER_BYTES_MAX), self.now_s)

    async def _read_refusal(self, response: httpx.Response, hearing: Hearing) -> None:
        hearing.retry_after_s = retry_after_of(response.headers.get("retry-after"))
        later = response.status_code in _LATER
        try:
            raw = await bounded_body(response, ERROR_BYTES_MAX)
        except (httpx.HTTPError, TooMuch):
            raw = b""
        try:
            frame = json.decode(raw)
            text, hearing.refusal = error_text(frame), all_texts(frame)
        except (ValueError, RecursionError):
            hearing.refusal = raw.decode("utf-8", "replace")
            text = "" if raw.lstrip()[:1] == b"<" else raw.decode("utf-8", "replace")
        hearing.fail(Trouble.LIMITED if later else Trouble.REFUSED, text or f"status {response.status_code}")

    async def _read_stream(self, response: httpx.Response, hearing: Hearing) -> None:
        response.stream = _Bounded(_raw(response), ANSWER_BYTES_MAX)
        events = EventSource(response).aiter_sse()
        leave = hearing.ask.leave
        try:
            async for event in events:
                if event.data == _DONE:
                    hearing.finished = True
                    return
                if event.data:
                    hearing.event(event.data, self.now_s)
                if hearing.trouble is not None:
                    return
                if leave and hearing.num_pieces >= leave:
                    hearing.fail(Trouble.LEFT)
                    return
        finally:
            await events.aclose()
        if not hearing.finished:
            hearing.fail(Trouble.BROKEN, "the stream ended in its middle")


def _raw(response: httpx.Response) -> httpx.AsyncByteStream:
    stream = response.stream
    if not isinstance(stream, httpx.AsyncByteStream):
        raise httpx.StreamError("not an asynchronous stream")
    return stream


async def bounded_body(response: httpx.Response, bytes_max: int) -> bytes:
    """Give a body that is no longer than this.

    Raises:
        TooMuch: it is longer, or packed: nobody knows how long it will be.
    """
    if is_packed(response):
        raise TooMuch
    response.stream = _Bounded(_raw(response), bytes_max)
    return await response.aread()


def is_packed(response: httpx.Response) -> bool:
    """Is a body other than plain, though it was asked for plain?"""
    return response.headers.get("content-encoding", "identity").lower() not in ("", "identity")


def _same_origin(url: str, location: str) -> str | None:
    """Give where a redirect leads, if that is the same scheme, host and port."""
    try:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
    except ValueError:
        return None
    return target if location and (here.scheme, here.netloc) == (there.scheme, there.netloc) else None


def _note_end(hearing: Hearing, limit_s: float, *, left: bool) -> None:
    if left:
        hearing.fail(Trouble.LEFT)
    elif hearing.num_pieces:
        hearing.fail(Trouble.BROKEN, f"no end within {limit_s:.0f} s")
    else:
        hearing.fail(Trouble.UNREACHABLE, f"no answer within {limit_s:.0f} s")


def _note_error(hearing: Hearing, error: Exception) -> None:
    """Name what went wrong below HTTP; the text of a stranger's error is not shown."""
    if words := tls_words(error):
        hearing.fail(Trouble.UNREACHABLE, words)
    elif hearing.status is None:
        hearing.fail(Trouble.UNREACHABLE, f"no answer: {type(error).__name__}")
    else:
        hearing.fail(Trouble.BROKEN, f"the connection broke: {type(error).__name__}")


def tls_words(error: BaseException) -> str:
    """Say what of TLS failed, in words of our own; nothing where it was something else."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return "TLS: nobody vouches for its certificate; name its authority with --ca, or see --insecure-tls"
        if isinstance(seen, ssl.SSLError):
            return f"TLS: {seen.reason or 'failed'}; see --ca and --insecure-tls"
        seen = seen.__cause__ or seen.__context__
    return ""


def retry_after_of(value: str | None) -> float | None:
    """Read Retry-After, seconds or a date; None where it says nothing."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, OSError):
        return None
