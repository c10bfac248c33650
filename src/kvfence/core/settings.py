"""Everything a user can set for ``serve``, as one frozen value.

Loaded only in ``cli/load_settings.py``: defaults < TOML < environment < flags. Field docs are shown by
``kvfence config show`` and ``--help``.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from kvfence.core.limits import Limits

Role = Literal["prefill", "decode"]


class ModelSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Which model runs, and how."""

    path: Annotated[str, Meta(description="checkpoint folder or hub id; empty: the embedded model")] = ""
    name: Annotated[str, Meta(description="name in the API; empty: the checkpoint's own")] = ""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="auto: bfloat16 where the processor computes it natively, else float32"),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="auto: cuda where present")] = "auto"
    context: Annotated[str, Meta(description="tokens, or auto: the largest that both pools hold")] = ""
    threads: Annotated[int, Meta(description="threads of each worker's model", ge=1, le=512)] = 1
    kernels: Annotated[bool, Meta(description="build and use our own C kernels on CPUs where there is a compiler")] = (
        True
    )


class PoolSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How many tokens of KV each worker of a role holds."""

    page_size: Annotated[int, Meta(description="tokens in a page", ge=1, le=1024)] = 16
    tokens: Annotated[int, Meta(description="pool of each worker in tokens; 0: one context plus a page", ge=0)] = 0
    prefill_tokens: Annotated[int, Meta(description="each prefill worker's pool; 0: as pool.tokens", ge=0)] = 0
    decode_tokens: Annotated[int, Meta(description="each decode worker's pool; 0: as pool.tokens", ge=0)] = 0
    memory_fraction: Annotated[
        float, Meta(description="share of the memory left after the weights, for all workers; 0: off", ge=0, le=0.95)
    ] = 0.0
    prefix_reuse: Annotated[
        bool, Meta(description="prompts of one tenant that begin alike share prefill's pages; never two tenants'")
    ] = True
    zero_on_release: Annotated[bool, Meta(description="zero a page when it becomes free; a second line only")] = False


class ServerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens, and for whom."""

    host: Annotated[str, Meta(description="address; other than loopback only with api_keys")] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port", ge=0, le=65535)] = 8000
    api_keys: Annotated[
        str,
        Meta(description="file with lines 'key tenant [requests=N] [tokens_per_minute=N]'; empty: loopback only"),
    ] = ""
    max_body_bytes: Annotated[int, Meta(description="larger bodies get 413", ge=1024)] = 16 << 20
    deadline_s: Annotated[float, Meta(description="seconds a request may take", gt=0, le=7 * 86400)] = 600.0


class EngineSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose workers generate: kvfence's own on this host, or those of another engine, by their URLs."""

    kind: Annotated[
        Literal["kvfence", "sglang", "vllm"], Meta(description="kvfence: its own workers, every page fenced")
    ] = "kvfence"
    prefill: Annotated[
        tuple[str, ...], Meta(description="with another engine: URLs of its prefill workers; repeat it, or use commas")
    ] = ()
    decode: Annotated[
        tuple[str, ...], Meta(description="with another engine: URLs of its decode workers; repeat it, or use commas")
    ] = ()
    key_file: Annotated[str, Meta(description="file with the API key that the engine's servers want; empty: none")] = ""


class TransportSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How pages travel from prefill to decode."""

    kind: Annotated[Literal["shm", "mooncake"], Meta(description="shared memory, or Mooncake (extra `mooncake`)")] = (
        "shm"
    )
    protocol: Annotated[
        Literal["tcp", "rdma", "auto"], Meta(description="Mooncake's; auto: rdma where this machine has a device")
    ] = "tcp"
    device: Annotated[str, Meta(description="RDMA devices, comma-separated; empty: as Mooncake finds them")] = ""
    prefill_host: Annotated[
        str, Meta(description="IPv4 address of prefill's data ports; who reaches it can read KV pages")
    ] = "127.0.0.1"
    decode_host: Annotated[
        str, Meta(description="IPv4 address of decode's data ports; who reaches it can read and write KV pages")
    ] = "127.0.0.1"


class WorkerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The processes."""

    prefill: Annotated[int, Meta(description="prefill workers", ge=1, le=16)] = 1
    decode: Annotated[int, Meta(description="decode workers", ge=1, le=16)] = 1
    trace: Annotated[str, Meta(description="folder for the protocol trace (NDJSON); empty: none")] = ""
    ready_timeout_s: Annotated[float, Meta(description="seconds for a worker to load and answer", gt=0, le=86400)] = (
        120.0
    )
    silent_timeout_s: Annotated[
        float,
        Meta(
            description="seconds of silence after which a worker gets no request, its clients an error",
            ge=1,
            le=86400,
        ),
    ] = 3.0
    heartbeat_timeout_s: Annotated[
        float, Meta(description="seconds of silence after which a worker is killed and replaced", ge=2, le=86400)
    ] = 10.0
    drain_timeout_s: Annotated[
        float, Meta(description="seconds that open requests may take after SIGTERM or Ctrl-C", ge=0, le=86400)
    ] = 30.0


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What is told of requests, and in which form. Never their content."""

    log_format: Annotated[
        Literal["json", "console"], Meta(description="json: one object a line; console: for people")
    ] = "json"
    fence_names: Annotated[
        bool, Meta(description="/fence shows tenants' names; else numbers in the order of their first request")
    ] = False
    otel: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="spans by OTLP (extra 'otel'); auto: where OTEL_EXPORTER_OTLP_ENDPOINT is set"),
    ] = "auto"


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings; unknown keys are refused."""

    model: ModelSettings = ModelSettings()
    pool: PoolSettings = PoolSettings()
    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    transport: TransportSettings = TransportSettings()
    workers: WorkerSettings = WorkerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    limits: Limits = Limits()
