"""HTTP towards the engines: one POST answered whole, or as a stream of events; nothing is repeated here.

Whoever stops listening closes the connection; an engine that would generate on is told first (``Dialect.abort_call``).
Not for: what bodies say.
"""

from collections.abc import AsyncGenerator

import httpx
from httpx_sse import EventSource, SSEError
from msgspec import DecodeError, Struct, json

from kvfence.core.request import without_content
from kvfence.engines.dialect import Call
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EngineWords

CONNECT_TIMEOUT_S = 5.0
KEPT_S = 2.0
"""An idle connection is used again so long: the engines close theirs after 5 s, and one that closes looks lost."""
WORDS_CHARS_MAX = 2000
_JSON = {"content-type": "application/json"}


class Reply(Struct, frozen=True):
    """A whole answer. ``status`` 0: none came, or it broke off. ``reached``: the worker may have read the question."""

    status: int
    body: bytes = b""
    reached: bool = True

    __repr__ = without_content


def open_client(key: str = "") -> httpx.AsyncClient:
    """Open a client that follows no redirects and no proxies; how long an answer may take is the asker's deadline."""
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEPT_S)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers, trust_env=False)


async def post(http: httpx.AsyncClient, call: Call) -> Reply:
    """Ask, and wait for the whole answer."""
    try:
        answer = await http.post(call.url, content=call.body, headers=_JSON)
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return Reply(0, reached=False)
    except httpx.HTTPError:
        return Reply(0)
    return Reply(answer.status_code, answer.content)


async def events(http: httpx.AsyncClient, call: Call) -> AsyncGenerator[bytes | Reply, None]:
    """Ask, and yield the data of each event; or one Reply at last, where there is no stream or it broke off."""
    try:
        async with http.stream("POST", call.url, content=call.body, headers=_JSON) as answer:
            if answer.status_code != 200:
                yield Reply(answer.status_code, await answer.aread())
                return
            async for event in EventSource(answer).aiter_sse():
                if event.data == "[DONE]":
                    return
                yield event.data.encode()
    except (httpx.ConnectError, httpx.ConnectTimeout):
        yield Reply(0, reached=False)
    except (httpx.HTTPError, SSEError):
        yield Reply(0)


class Ending(Struct, frozen=True):
    """How a leg ended.

    ``elsewhere``: another pair may do better. ``lost``: this worker is not there, or not as asked. ``unsettled``: pages
    may be on their way all the same.
    """

    reason: EndReason
    words: EngineWords | None = None
    elsewhere: bool = False
    lost: bool = False
    unsettled: bool = False


UNREACHED = Ending(EndReason.WORKER_LOST, elsewhere=True, lost=True)


def ending_of(status: int, words: EngineWords | None = None) -> Ending:
    """Say what an error of an engine means. A refusal of the request is final; a busy or broken worker is not."""
    if status == 0:
        return Ending(EndReason.WORKER_LOST, elsewhere=True, lost=True, unsettled=True)
    if status in (401, 403, 404, 405):  # of the gateway's own asking: no client can mend it
        return Ending(EndReason.NO_WORKER, elsewhere=True, lost=True)
    if status in (429, 503):
        return Ending(EndReason.SERVER_FULL, words, elsewhere=True)
    if 400 <= status < 500:
        return Ending(EndReason.REFUSED_AT_INTAKE, words)
    return Ending(EndReason.TRANSFER_FAILED, elsewhere=True, unsettled=True)


def ending_of_reply(reply: Reply) -> Ending:
    """Say what a whole answer that is an error means, in the engine's own words where they are for the client."""
    return ending_of(reply.status, words_of(reply.status, reply.body)) if reply.reached else UNREACHED


def words_of(status: int, body: bytes) -> EngineWords | None:
    """Find the message of an error, wherever the engine's version puts it."""
    try:
        said = json.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None
    said = said.get("error", said) if isinstance(said, dict) else said
    if isinstance(said, dict):
        said = said.get("message") or said.get("detail")
    return EngineWords(status, said[:WORDS_CHARS_MAX]) if isinstance(said, str) and said else None
