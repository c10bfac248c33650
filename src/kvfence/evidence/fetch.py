"""One bounded HTTP GET: only the URL given, no redirects, no proxies, a time-out, a size bound.

A credential comes from an environment variable that the caller names; it is sent and never shown.
"""

import contextlib
import http.client
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from kvfence.core.errors import EvidenceError
from kvfence.evidence.redact import MASK, redact

TIMEOUT_S = 5.0
DEADLINE_S = 15.0
BODY_BYTES_MAX = 1 << 25
_CHUNK = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Answer(Struct, frozen=True):
    """What a URL answered. ``status`` 0: nothing; ``problem`` says why, or why the body is not whole."""

    url: str
    status: int
    body: bytes = b""
    problem: str = ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer, not somewhere else to go."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """None: the redirect's own status is what the caller sees."""
        return


def is_url(text: str) -> bool:
    """Whether a SOURCE is a URL."""
    return (
        text.partition("://")[0].lower() in ("http", "https", "prometheus+http", "prometheus+https") and "://" in text
    )


def checked(url: str) -> str:
    """The URL, with no user or password in it.

    Raises:
        EvidenceError: it holds credentials, or names no host.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise EvidenceError("a URL must not hold credentials; name an environment variable with the token instead")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EvidenceError(f"{parts.scheme}://...: not an http(s) URL with a host")
    return urlunsplit(parts)


def shown(url: str) -> str:
    """The URL as it is named in facts and reports: what stands in its query may be a credential."""
    before, mark, _ = redact(url).partition("?")
    return f"{before}?{MASK}" if mark else before


def get(url: str, token_variable: str | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """GET one URL within ``timeout_s`` a step and ``DEADLINE_S`` in all; what went wrong is in the answer.

    Raises:
        EvidenceError: the named variable is not set.
    """
    headers = {"Accept": "application/json, text/plain;q=0.9, */*;q=0.1", "User-Agent": "kvfence-audit"}
    if token_variable:
        token = os.environ.get(token_variable)
        if not token:
            raise EvidenceError(f"the environment variable {token_variable} is not set")
        headers["Authorization"] = f"Bearer {token}"
    request, name = urllib.request.Request(checked(url), headers=headers), shown(url)
    connections: list[http.client.HTTPConnection] = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect(), _Watched(connections))
    timer = threading.Timer(DEADLINE_S, _shut, (connections,))
    timer.daemon = True
    started = time.monotonic()
    timer.start()
    try:
        with opener.open(request, timeout=timeout_s) as response:
            if time.monotonic() - started >= DEADLINE_S:
                return Answer(name, 0, b"", f"no answer within {DEADLINE_S:.0f} s")
            body, problem = _read(response)
            return Answer(name, int(response.status), body, problem)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(
                name, error.code, b"", "a redirect, which is not followed" if error.code in _REDIRECTS else ""
            )
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        return Answer(name, 0, b"", f"no answer: {type(reason).__name__}")
    except Exception as error:  # noqa: BLE001 -- http.client raises its own tree for broken answers
        return Answer(name, 0, b"", f"a broken answer: {type(error).__name__}")
    finally:
        timer.cancel()


def _shut(connections: list[http.client.HTTPConnection]) -> None:
    """End what still waits on a server that sends a byte of its head now and then."""
    for each in connections:
        if each.sock is not None:
            with contextlib.suppress(OSError):
                each.sock.shutdown(socket.SHUT_RDWR)


class _Watched(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections and keeps them in a list, so that they can be shut."""

    def __init__(self, connections: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a plain connection."""
        return self.do_open(self._keeping(http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open one over TLS."""
        return self.do_open(self._keeping(http.client.HTTPSConnection), req)

    def _keeping(self, kind: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        def made(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = kind(host, **options)
            self._connections.append(connection)
            return connection

        return made


def _read(response: object) -> tuple[bytes, str]:
    read = response.read1 if hasattr(response, "read1") else response.read  # type: ignore[attr-defined]
    parts: list[bytes] = []
    size, started = 0, time.monotonic()
    while chunk := read(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            return b"".join(parts), f"longer than {BODY_BYTES_MAX} bytes: read in part"
        if time.monotonic() - started > DEADLINE_S:
            return b"".join(parts), f"not all came within {DEADLINE_S:.0f} s: read in part"
    return b"".join(parts), ""
