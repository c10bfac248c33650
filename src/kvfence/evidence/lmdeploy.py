"""LMDeploy: TurboMind's block manager and the lines with which it shortens a session.

``block_size`` is in megabytes and never tokens; tokens are blocks times ``cache_block_seq_len``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.arguments import Argument, pairs, stated
from kvfence.evidence.forms import plain, reading
from kvfence.evidence.readings import Form, Found, Line, Notebook

ENGINE = "lmdeploy"
BLOCK_TOKENS = 64
"""``cache_block_seq_len`` of TurboMind where not set. Source: lmdeploy TurbomindEngineConfig, 0.2 to 0.17."""

ARGUMENTS: dict[str, Argument] = {
    "session_len": Argument("context_len", "int", 4),
    "cache_block_seq_len": Argument("page_size", "int"),
    "block_size": Argument("page_size", "int", 4),
    "dtype": Argument("dtype"),
    "tp": Argument("tp_size", "int"),
    "dp": Argument("dp_size", "int"),
    "cache_max_entry_count": Argument("memory_fraction", "float"),
}


def read_arguments(arguments: Mapping[str, object]) -> Iterator[Found]:
    """Facts that an engine configuration states."""
    yield from stated(arguments, ARGUMENTS)
    prefix = arguments.get("enable_prefix_caching")
    if isinstance(prefix, bool):
        yield Found("prefix_cache", "enabled" if prefix else "disabled")
    role = {"Prefill": "prefill", "Decode": "decode", "Hybrid": "single"}.get(
        str(arguments.get("role", "")).split(".")[-1]
    )
    if role:
        yield Found("role", role)


def _read_config(match: re.Match[str], _line: Line) -> Iterable[Found]:
    arguments = dict(pairs(match.string, match.end() - 1))
    if match["backend"] == "Turbomind":
        arguments.pop("block_size", None)
    yield from read_arguments(arguments)


def _read_cache(match: re.Match[str], _line: Line) -> Iterable[Found]:
    """The PyTorch engine's cache: here ``block_size`` is in tokens."""
    arguments = dict(pairs(match.string, match.end() - 1))
    blocks, size = arguments.get("num_gpu_blocks"), arguments.get("block_size")
    if isinstance(blocks, int) and isinstance(size, int) and blocks > 0 and size > 0:
        yield Found("pool_tokens", blocks * size, 7)
        yield Found("page_size", size, 7)
        yield from read_arguments({key: value for key, value in arguments.items() if key == "enable_prefix_caching"})


FORMS: tuple[Form, ...] = (
    plain(ENGINE, "max_block_count", r"\bmax_block_count\s?[=:]\s?(?P<block_count>{N})"),
    plain(
        ENGINE,
        "No enough blocks for `session_len`",
        r"No enough blocks for `session_len` \((?P<context_len>{N})\), `session_len` truncated to (?P<session_fit>{N})",
        weight=8,
    ),
    plain(
        ENGINE,
        "due to limited KV cache memory",
        r"`session_len` truncated to (?P<session_fit>{N}) due to limited KV cache memory",
    ),
    plain(
        ENGINE,
        "`max_context_token_num` is not set",
        r"`max_context_token_num` is not set, default to (?P<context_len>{N})(?=\.?[\s`]|\.?$)",
        weight=5,
    ),
    plain(
        ENGINE, "prefix caching is enabled", r"\[SegMgr\] prefix caching is enabled", Found("prefix_cache", "enabled")
    ),
    plain(
        ENGINE,
        "prefix caching is disabled",
        r"\[SegMgr\] prefix caching is disabled",
        Found("prefix_cache", "disabled"),
    ),
    reading(ENGINE, "CacheConfig(", r"\bCacheConfig\(", _read_cache),
    reading(ENGINE, "EngineConfig(", r"(?P<backend>Turbomind|Pytorch)EngineConfig\(", _read_config),
    reading("", "invalid free", r"(?i:invalid free)", lambda _match, _line: [Found("event", "invalid_free")]),
)


def derive(book: Notebook) -> None:
    """The pool from blocks, or from the session that the engine cut to fit it."""
    blocks, fit = book.choose("block_count"), book.choose("session_fit")
    count, page = book.number("block_count"), book.number("page_size")
    default = "lmdeploy: cache_block_seq_len 64"
    if fit is not None:
        tokens = int(fit.value)
        book.derive(Found("pool_tokens", tokens, 6), fit)
        book.derive(Found("effective_input_limit", tokens, 6), fit)
        if blocks is not None and count and page is None and tokens % count == 0:
            book.derive(Found("page_size", tokens // count, 4), blocks, "tokens / blocks")
    elif blocks is not None and count:
        by_default = "" if page else default
        book.derive(
            Found("pool_tokens", count * (page or BLOCK_TOKENS), 5, by_default), blocks, "blocks x cache_block_seq_len"
        )
        if page is None:
            book.derive(Found("page_size", BLOCK_TOKENS, 2, default), blocks, "cache_block_seq_len")
