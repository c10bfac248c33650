"""Puts a practice server together, behind the gateway of every other; ``serve`` cannot reach this module.

Not for: what is wrong with it (``kvfence.ranges``) or what is said about it (``range.py``).
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from msgspec import Struct

from kvfence.cli.compose import ServedModel, WorkerNumbers, find_model
from kvfence.cli.render import progress
from kvfence.core.errors import SettingsError
from kvfence.core.ids import TenantId
from kvfence.core.limits import Limits
from kvfence.core.settings import ModelSettings, PoolSettings, Settings, WorkerSettings
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.logs import open_log
from kvfence.gateway.registry import LOCAL, KeyRegistry, is_loopback
from kvfence.gateway.responses import Failure
from kvfence.gateway.server import Address, bind, serving
from kvfence.gateway.translate import TextTokenizer
from kvfence.models.tokenizer import load_tokenizer
from kvfence.protocol.admission import Capacity
from kvfence.ranges.catalogue import Range
from kvfence.ranges.orders import Orders
from kvfence.ranges.pieces import PieceTokenizer
from kvfence.ranges.practice import NAME
from kvfence.runtime.life import Plan
from kvfence.runtime.supervisor import Supervisor

BANNER = "x-kvfence-range"
READY_S, QUIET_S = 600.0, 60.0
"""A slow machine is no reason to replace a worker of a practice server."""


class Sizes(Struct, frozen=True):
    """How large it is, in tokens: prefill's pool below the context, as in the incident, and decode's above it."""

    context: int = 2048
    prefill: int = 1024
    decode: int = 1536
    page: int = 16

    def pages(self) -> dict[str, int]:
        """Give the pools in pages."""
        return {"prefill": -(-self.prefill // self.page), "decode": -(-self.decode // self.page)}


class Ask(Struct, frozen=True):
    """What is to be served. ``put_back``: guards of the range that are on all the same. ``trace``: a folder."""

    range: Range
    orders: Orders
    sizes: Sizes = Sizes()
    model: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    put_back: tuple[str, ...] = ()
    trace: str = ""


class Practice(Struct, frozen=True):
    """A practice server that answers."""

    address: Address
    model: str
    capacity: Capacity
    supervisor: Supervisor


class AnyKey(KeyRegistry):
    """Takes whatever key is sent for a tenant, known by a few bits of its digest; keys themselves are not kept.

    Holds: nothing, so that there are at most 65,537 tenants, whatever is sent.
    """

    def tenant_of(self, authorization: str) -> TenantId | Failure:
        """Give the tenant of an Authorization header; without one everyone is the same."""
        _, _, key = authorization.partition(" ")
        if not key.strip():
            return LOCAL
        return TenantId("tenant-" + hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).hexdigest()[:4])


def banner_of(practice: Range) -> str:
    """Give what stands in the banner of every answer."""
    says = "this server leaks on purpose" if practice.leaks else "a practice server with every guard on"
    return f"{practice.name}; {says}"


def in_own_flags(text: str) -> str:
    """Give a worker's advice with the flags that a practice server has; workers know those of ``serve``."""
    return text.replace("--pool-tokens", "--prefill-tokens, --decode-tokens")


def require_loopback(host: str) -> None:
    """Refuse every other host, keys or not.

    Raises:
        SettingsError: the host is not loopback.
    """
    if not is_loopback(host):
        raise SettingsError([f"--host {host}: a practice server leaks on purpose and listens on loopback alone"])


@asynccontextmanager
async def practising(ask: Ask, log_file: TextIO | None = None) -> AsyncIterator[Practice]:
    """Serve while the block runs.

    Raises:
        SettingsError: the host is not loopback, or the port is taken.
        WorkerError, CapacityError, ModelError: it cannot be started.
    """
    require_loopback(ask.host)
    listener = bind(ask.host, ask.port)
    try:
        model = await asyncio.to_thread(_find_model, ask)
        log = open_log("json", log_file)
        supervisor = Supervisor(_plan(ask, model), log)
        try:
            capacity = await supervisor.start()
            deps = GatewayDeps(
                generations=supervisor.dispatcher,
                tokenizer=_tokenizer(model),
                model=NAME if model is None else model.name,
                log=log,
                keys=AnyKey(),
                gauges=WorkerNumbers(supervisor),
                journeys=supervisor.dispatcher.journeys,
                probe_every_s=0,
            )
            headers = ((BANNER, banner_of(ask.range)),)
            async with serving(build_app(deps), listener, headers=headers, stop_timeout_s=1) as address:
                yield Practice(address, deps.model, capacity, supervisor)
        finally:
            await supervisor.stop()
    finally:
        listener.close()


def _find_model(ask: Ask) -> ServedModel | None:
    """Find the checkpoint; None for the practice model."""
    if ask.orders.practice:
        return None
    path = "" if ask.model == "embedded" else ask.model
    with progress("embedded model") as report:
        return find_model(Settings(model=ModelSettings(path=path, context=str(ask.sizes.context))), report)


def _tokenizer(model: ServedModel | None) -> TextTokenizer:
    return PieceTokenizer() if model is None else load_tokenizer(model.path)


def _plan(ask: Ask, model: ServedModel | None) -> Plan:
    pages = ask.sizes.pages()
    return Plan(
        Settings(
            model=ModelSettings(context=str(ask.sizes.context)),
            pool=PoolSettings(page_size=ask.sizes.page),
            limits=Limits(chunk_tokens_max=ask.range.chunk_tokens),
            workers=WorkerSettings(
                trace=ask.trace, ready_timeout_s=READY_S, silent_timeout_s=QUIET_S, heartbeat_timeout_s=QUIET_S
            ),
        ),
        "" if model is None else str(model.path),
        ask.range.rules(ask.put_back),
        {"prefill": pages["prefill"], "decode": pages["decode"]},
        ask.sizes.context,
        modules={"prefill": "kvfence.ranges.prefill_worker", "decode": "kvfence.ranges.decode_worker"},
        check_capacity=False,
        environment=ask.orders.as_environment(),
    )
