"""Typed facts of a deployment, each known with where it was read, or unknown with why.

A value that the text does not prove is ``Unknown``; nothing here guesses. Not for: judging (``kvfence.audit``).
"""

from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

QUOTE_CHARS_MAX = 200
"""A quote is cut to this, its control characters escaped; it never holds a credential."""


class Origin(Struct, frozen=True):
    """Where a value was read.

    Units: line from 1, None for what has no lines; at: the text's own time stamp, as written.
    """

    source: str
    line: int | None = None
    quote: str = ""
    at: str | None = None
    key: str = ""


class Known(Struct, Generic[T], frozen=True, tag="known"):
    """A value and where it was read. ``default_of``: the engine and version whose documented default it is, if so."""

    value: T
    origin: Origin
    default_of: str = ""


class Unknown(Struct, frozen=True, tag="unknown"):
    """Not known, and why."""

    reason: str = "not in the evidence"


NOT_SEEN = Unknown()

IntFact = Known[int] | Unknown
FloatFact = Known[float] | Unknown
TextFact = Known[str] | Unknown
FlagFact = Known[bool] | Unknown


class Event(Struct, frozen=True):
    """A run-time signature that was seen: its name (a fixed set, see ``signatures.py``), how often, first and last."""

    name: str
    count: int
    first: Origin
    last: Origin


class SourceFacts(Struct, frozen=True):
    """All that one source (a log, an endpoint, a manifest's container, a command) says of one engine process.

    Units:
        pool_tokens, context_tokens, limits: tokens, of one rank where ``dp_rank`` is known; never a sum over ranks.
        pool_tokens_swa: the sliding-window sub-pool of a hybrid model.
        advertised_context: what clients are told (``/v1/models``), a third number beside pool and context.
        effective_input_limit: the longest prompt the engine itself says it accepts.
        timeouts in seconds.
        router_timeout_s: after which a router or load balancer gives up a request.
        leak_tokens: tokens that the engine lost track of; below zero, pages were freed twice.
    """

    name: str
    kind: str
    engine: TextFact = NOT_SEEN
    version: TextFact = NOT_SEEN
    is_fork: FlagFact = NOT_SEEN
    role: TextFact = NOT_SEEN
    model: TextFact = NOT_SEEN
    pool_tokens: IntFact = NOT_SEEN
    pool_tokens_estimated: IntFact = NOT_SEEN
    pool_tokens_swa: IntFact = NOT_SEEN
    pool_class: TextFact = NOT_SEEN
    context_len: IntFact = NOT_SEEN
    context_len_requested: IntFact = NOT_SEEN
    context_auto: FlagFact = NOT_SEEN
    model_context: IntFact = NOT_SEEN
    advertised_context: IntFact = NOT_SEEN
    effective_input_limit: IntFact = NOT_SEEN
    slots: IntFact = NOT_SEEN
    page_size: IntFact = NOT_SEEN
    dtype: TextFact = NOT_SEEN
    kv_dtype: TextFact = NOT_SEEN
    quantisation: TextFact = NOT_SEEN
    memory_fraction: FloatFact = NOT_SEEN
    cuda_graph: TextFact = NOT_SEEN
    tp_size: IntFact = NOT_SEEN
    pp_size: IntFact = NOT_SEEN
    dp_size: IntFact = NOT_SEEN
    cp_size: IntFact = NOT_SEEN
    dp_rank: IntFact = NOT_SEEN
    dp_attention: FlagFact = NOT_SEEN
    speculation: TextFact = NOT_SEEN
    layout: TextFact = NOT_SEEN
    transfer_backend: TextFact = NOT_SEEN
    connector: TextFact = NOT_SEEN
    batch_indices_max: IntFact = NOT_SEEN
    deferred_release: FlagFact = NOT_SEEN
    release_timeout_s: FloatFact = NOT_SEEN
    transfer_timeout_s: FloatFact = NOT_SEEN
    waiting_timeout_s: FloatFact = NOT_SEEN
    router_timeout_s: FloatFact = NOT_SEEN
    kv_checksum_requested: FlagFact = NOT_SEEN
    kv_checksum_active: FlagFact = NOT_SEEN
    kv_canary_requested: TextFact = NOT_SEEN
    kv_canary_active: FlagFact = NOT_SEEN
    kv_canary_real_data: TextFact = NOT_SEEN
    auto_truncate: FlagFact = NOT_SEEN
    prefix_cache: TextFact = NOT_SEEN
    cache_salt: FlagFact = NOT_SEEN
    outer_cache: TextFact = NOT_SEEN
    hybrid_model: FlagFact = NOT_SEEN
    failure_policy: TextFact = NOT_SEEN
    aborts_on_disconnect: FlagFact = NOT_SEEN
    retries: FlagFact = NOT_SEEN
    health_check: TextFact = NOT_SEEN
    api_key_set: FlagFact = NOT_SEEN
    side_channel: TextFact = NOT_SEEN
    leak_tokens: IntFact = NOT_SEEN
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()
