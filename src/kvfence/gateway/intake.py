"""Takes in a request's body, bounded in bytes and in time, and says whose it is.

Not for: what the body says (``translate.py``).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect, Request

from kvfence.core.ids import TenantId
from kvfence.gateway.registry import NOT_AN_OPERATOR, KeyRegistry, is_loopback
from kvfence.gateway.responses import INVALID, Failure

LARGE_BYTES = 1 << 20
LARGE_AT_ONCE = 16
LARGE_OF_TENANT = 2
"""Bodies above LARGE_BYTES, or of unknown length, that are held at one time, in all and of one tenant; others wait
their turn. In all at most LARGE_AT_ONCE times the largest body: 256 MiB.
"""

BODY_TIMEOUT_S = 60.0
DRAIN_BYTES_MAX = 64 << 20
DRAIN_TIMEOUT_S = 10.0
"""What a client still sends after it was refused is read and dropped so far, or it would not see the answer."""

SLOW = Failure(408, INVALID, f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s.", "body_timeout")
GONE = Failure(499, INVALID, "The client left before its body was complete.", "client_gone")
FOREIGN_HOST = Failure(
    403,
    "authentication_error",
    "Without API keys only requests to a loopback host name are answered (Host: localhost or 127.0.0.1).",
    "foreign_host",
)


class Intake:
    """Reads bodies of one server."""

    def __init__(self, max_body_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self._max_bytes = max_body_bytes
        self._timeout_s = timeout_s
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._of_tenant: WeakValueDictionary[TenantId, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def body(self, request: Request, tenant: TenantId) -> AsyncIterator[bytes | Failure]:
        """Give the body; while the caller holds a large one, few others are held, and fewer of the same tenant."""
        declared = _declared_bytes(request)
        if declared is not None and declared > self._max_bytes:
            await self._drain(request)
            yield self._too_large()
            return
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if declared is None or declared > LARGE_BYTES:
                        own = self._of_tenant.setdefault(tenant, asyncio.Semaphore(LARGE_OF_TENANT))
                        await stack.enter_async_context(own)
                        await stack.enter_async_context(self._large)
                    received = await self._collect(request)
            except TimeoutError:
                received = SLOW
            except ClientDisconnect:
                received = GONE
            yield received

    async def _collect(self, request: Request) -> bytes | Failure:
        collected = bytearray()
        chunks = request.stream()
        async for chunk in chunks:
            if len(collected) + len(chunk) > self._max_bytes:
                collected.clear()
                await _drop(chunks)
                return self._too_large()
            collected += chunk
        return bytes(collected)

    async def _drain(self, request: Request) -> None:
        """Drop what the client is sending; one that waits for ``100 Continue`` is not sending."""
        if request.headers.get("expect", "").lower() != "100-continue":
            try:
                await _drop(request.stream())
            except ClientDisconnect:
                return

    def _too_large(self) -> Failure:
        message = f"The body is larger than {self._max_bytes} bytes (--max-body-bytes)."
        return Failure(413, INVALID, message, "body_too_large")


async def _drop(chunks: AsyncIterator[bytes]) -> None:
    num_bytes = 0
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            async for chunk in chunks:
                num_bytes += len(chunk)
                if num_bytes > DRAIN_BYTES_MAX:
                    return
    except TimeoutError:
        return


def _declared_bytes(request: Request) -> int | None:
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else None


def identify(request: Request, registry: KeyRegistry) -> TenantId | Failure:
    """Say whose request it is.

    Without keys the Host must be loopback: a web page in a local browser can point a name of its own at 127.0.0.1.
    """
    if registry.open and not is_loopback(_host_name(request.headers.get("host", ""))):
        return FOREIGN_HOST
    return registry.tenant_of(request.headers.get("authorization", ""))


def identify_operator(request: Request, registry: KeyRegistry) -> Failure | None:
    """Say why whoever asks may not see the fence; None where they may."""
    if registry.open:
        refusal = identify(request, registry)
        return refusal if isinstance(refusal, Failure) else None
    return None if registry.is_operator(request.headers.get("authorization", "")) else NOT_AN_OPERATOR


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
