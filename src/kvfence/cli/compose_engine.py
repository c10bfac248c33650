"""Puts the gateway before pairs of another engine: URLs, tokenizer, dispatcher, socket.

Not for: our own workers (``compose.py``) or what is printed (``serve.py``).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from kvfence.cli.settings_flags import FLAGS
from kvfence.core.errors import EvidenceError, SettingsError
from kvfence.core.settings import Settings
from kvfence.engines.dialect import Dialect
from kvfence.engines.dispatcher import EngineDispatcher, EngineNumbers
from kvfence.engines.door import open_client
from kvfence.engines.fleet import Fleet, Sample
from kvfence.engines.sglang import SglangDialect
from kvfence.engines.vllm import VllmDialect
from kvfence.evidence.fetch import checked
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.logs import open_log
from kvfence.gateway.quotas import Allowance
from kvfence.gateway.registry import KeyRegistry
from kvfence.gateway.server import Address, bind, serving
from kvfence.gateway.telemetry import open_tracing
from kvfence.models.tokenizer import load_tokenizer

DIALECTS: dict[str, type[Dialect]] = {"sglang": SglangDialect, "vllm": VllmDialect}
OWN_SECTIONS = frozenset({"pool", "transport"})
OWN_KEYS = frozenset(
    {
        *(f"workers.{name}" for name in ("prefill", "decode", "trace", "silent_timeout_s", "heartbeat_timeout_s")),
        *(f"model.{name}" for name in ("dtype", "device", "context", "threads", "kernels")),
    }
)
"""What is set for our own workers, and means nothing before others."""


SAMPLE = "Straße 12, 345 \u2014 \u4f60\u597d!\n\tdef f(x): return x"
"""Words, digits, scripts and spaces that tokenizers cut differently."""


class RunningFront(Struct, frozen=True):
    """A gateway that answers. ``problems``: of workers that get no request yet."""

    address: Address
    model: str
    dispatcher: EngineDispatcher
    problems: list[str]


def require_engine_settings(settings: Settings, given: Iterable[str]) -> None:
    """Refuse settings that do not go together. ``given``: dotted keys of all that was set.

    Raises:
        SettingsError: an engine without URLs or a checkpoint, a URL that is none, what only our own workers use.
    """
    engine = settings.engine
    problems = [
        f"--{role}: name at least one {role} worker of {engine.kind} by its URL, like http://10.0.0.1:30000"
        for role in ("prefill", "decode")
        if not getattr(engine, role)
    ]
    problems += [problem for url in (*engine.prefill, *engine.decode) for problem in _url_problems(url)]
    if not settings.model.path:
        problems.append(
            "--model: name the checkpoint that the engine serves; its tokenizer and configuration are enough"
        )
    own = [FLAGS[key] for key in given if key in OWN_KEYS or key.partition(".")[0] in OWN_SECTIONS]
    if own:
        problems.append(
            f"{', '.join(own)}: of kvfence's own workers, without a meaning before {engine.kind}; leave out"
        )
    if problems:
        raise SettingsError(problems)


def _url_problems(url: str) -> list[str]:
    try:
        checked(url)
    except EvidenceError as error:
        return [f"{url.rpartition('@')[2]}: {error}"]
    return []


@asynccontextmanager
async def running_front(settings: Settings, registry: KeyRegistry, checkpoint: Path) -> AsyncIterator[RunningFront]:
    """Serve while the block runs. Workers may come later: until both roles were measured, nothing is admitted.

    Raises:
        SettingsError: the port is taken, or the key file is unreadable.
        ModelError: the checkpoint's tokenizer cannot be read.
    """
    name, key = settings.model.name or checkpoint.name, _read_key(settings.engine.key_file)
    tokenizer = await asyncio.to_thread(load_tokenizer, checkpoint, runs_here=False)
    sample = Sample(SAMPLE, tokenizer.encode(SAMPLE, len(SAMPLE) * 4))
    log = open_log(settings.telemetry.log_format)
    tracing = open_tracing(settings.telemetry.otel, name, log)
    listener = bind(settings.server.host, settings.server.port)
    dialect = DIALECTS[settings.engine.kind]()
    http = open_client(key)
    fleet = Fleet(dialect, http, {"prefill": settings.engine.prefill, "decode": settings.engine.decode}, sample)
    dispatcher = EngineDispatcher(fleet, dialect, http, settings.limits)
    try:
        await fleet.start()
        deps = GatewayDeps(
            generations=dispatcher,
            tokenizer=tokenizer,
            model=name,
            log=log,
            keys=registry,
            gauges=EngineNumbers(dispatcher),
            journeys=dispatcher.journeys,
            tracing=tracing,
            max_body_bytes=settings.server.max_body_bytes,
            deadline_s=settings.server.deadline_s,
            allowance=Allowance(settings.limits.tenant_requests_max, settings.limits.tenant_tokens_per_minute),
        )
        async with serving(build_app(deps), listener) as address:
            yield RunningFront(address, name, dispatcher, fleet.problems())
    finally:
        listener.close()
        await dispatcher.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)


def _read_key(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"--engine-key-file {file}: {type(error).__name__}; name a file this can read"]) from None
