"""A gateway before engines that follow a script, and what a test does with it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.limits import Limits
from kvfence.core.request import Request, SamplingParams
from kvfence.engines.dialect import Dialect
from kvfence.engines.dispatcher import EngineDispatcher, EngineNumbers
from kvfence.engines.door import open_client
from kvfence.engines.fleet import Fleet, Looking, Sample
from kvfence.engines.handoff import Handoff
from kvfence.engines.sglang import SglangDialect
from kvfence.engines.vllm import VllmDialect
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.logs import open_log
from kvfence.gateway.registry import KeyRegistry
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.integration.engines.fakes import Rooms, Script, SglangFake, VllmFake, listening
from tests.unit.gateway.fakes import ByteTokenizer

FAKES: dict[type[Dialect], type[SglangFake] | type[VllmFake]] = {SglangDialect: SglangFake, VllmDialect: VllmFake}


class Site(Struct):
    """A gateway and the scripts behind it."""

    prefill: list[Script]
    decode: list[Script]
    dispatcher: EngineDispatcher
    client: httpx.AsyncClient
    log: Any

    def lines(self) -> list[dict[str, Any]]:
        """Give the canonical lines so far."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


class Build(Struct):
    """What stands where; a guard is taken away by putting another part here."""

    prefill: list[Script]
    decode: list[Script]
    dialect: Dialect
    handoffs: type[Handoff] = Handoff
    fleets: type[Fleet] = Fleet
    limits: Limits = Limits()
    sample: Sample | None = None
    looking: Looking | None = None


@asynccontextmanager
async def standing(build: Build) -> AsyncIterator[Site]:
    """Start every script as a server, and the gateway before them."""
    fake = next(fake for kind, fake in FAKES.items() if isinstance(build.dialect, kind))
    rooms, log = Rooms(), io.StringIO()
    async with AsyncExitStack() as stack:
        urls = {
            role: [await stack.enter_async_context(listening(fake(script, rooms).app())) for script in scripts]
            for role, scripts in (("prefill", build.prefill), ("decode", build.decode))
        }
        http = open_client()
        fleet = build.fleets(build.dialect, http, urls, build.sample, build.looking)  # type: ignore[arg-type]
        dispatcher = EngineDispatcher(fleet, build.dialect, http, build.limits, build.handoffs)
        stack.push_async_callback(dispatcher.close)
        await fleet.start()
        deps = GatewayDeps(
            generations=dispatcher,
            tokenizer=ByteTokenizer(),
            model="smol",
            log=open_log("json", log),
            keys=KeyRegistry(),
            gauges=EngineNumbers(dispatcher),
            journeys=dispatcher.journeys,
            probe_every_s=0,
        )
        base = await stack.enter_async_context(listening(build_app(deps)))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=base, timeout=20, trust_env=False))
        yield Site(build.prefill, build.decode, dispatcher, client, log)


async def complete(site: Site, prompt: str = "hello", **fields: Any) -> httpx.Response:
    """Ask for a completion."""
    body = {"model": "smol", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    return await site.client.post("/v1/completions", json=body)


def request_of(prompt: str = "hello", name: str = "r", tenant: str = "local", deadline_s: float = 30.0) -> Request:
    """Give a request as the gateway makes one."""
    sampling = SamplingParams(temperature=0.0)
    return Request(RequestId(name), TenantId(tenant), tuple(prompt.encode()), 8, sampling, deadline_s=deadline_s)


async def read_all(site: Site, request: Request) -> tuple[bytes, EndReason]:
    """Read a generation to its end."""
    text = bytearray()
    async for item in site.dispatcher.generate(request):
        if isinstance(item, EndOut):
            return bytes(text), item.reason
        text += bytes(token for token in item.token_ids if token < 256)
    raise AssertionError("no end came")


async def leave_when(site: Site, request: Request, come: asyncio.Event) -> None:
    """Begin a generation, and go as soon as the event is set."""

    async def read() -> None:
        async for item in site.dispatcher.generate(request):
            assert isinstance(item, TokensOut | EndOut)

    reading = asyncio.create_task(read())
    async with asyncio.timeout(10):
        await come.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
