"""TensorRT-LLM: the lines of its C++ KV cache manager and of ``trtllm-serve``.

The allocation line is printed twice (a dry run, then the real one): the last holds. A line that allocated 0.00 GiB
comes from a manager without memory and says nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.arguments import Argument, nested, stated
from kvfence.evidence.forms import plain, reading, whole
from kvfence.evidence.readings import Form, Found, Line, Notebook

ENGINE = "tensorrt-llm"

ARGUMENTS: dict[str, Argument] = {
    "model": Argument("model"),
    "max_seq_len": Argument("context_len", "int", 4),
    "tokens_per_block": Argument("page_size", "int", 4),
    "dtype": Argument("dtype"),
    "tensor_parallel_size": Argument("tp_size", "int"),
    "tp_size": Argument("tp_size", "int"),
    "pipeline_parallel_size": Argument("pp_size", "int"),
    "pp_size": Argument("pp_size", "int"),
    "enable_attention_dp": Argument("dp_attention", "flag"),
    "kv_cache_free_gpu_memory_fraction": Argument("memory_fraction", "float"),
    "free_gpu_memory_fraction": Argument("memory_fraction", "float"),
}


def read_arguments(arguments: Mapping[str, object]) -> Iterator[Found]:
    """Facts that a set of LLM arguments states."""
    yield from stated(arguments, ARGUMENTS)
    cache = nested(arguments.get("kv_cache_config"))
    yield from stated(cache, ARGUMENTS)
    if isinstance(reuse := cache.get("enable_block_reuse"), bool):
        yield Found("prefix_cache", "enabled" if reuse else "disabled")
    if isinstance(kv_dtype := cache.get("dtype"), str):
        yield Found("kv_dtype", kv_dtype)
    role = {"CONTEXT": "prefill", "GENERATION": "decode"}.get(str(arguments.get("server_role", "")).upper())
    mode = str(arguments.get("disaggregation_mode", ""))
    if role or mode in ("prefill", "decode"):
        yield Found("role", role or mode)
    transceiver = nested(arguments.get("cache_transceiver_config"))
    if isinstance(backend := transceiver.get("backend"), str):
        yield Found("transfer_backend", backend)


def _read_allocated(match: re.Match[str], _line: Line) -> Iterable[Found]:
    if float(match["gib"]) > 0:
        yield Found("pool_tokens", whole(match["tokens"]), 8)
    else:
        yield Found("manager_without_memory", True)


def _read_window(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("window", whole(match["window"]))
    yield Found("page_size", whole(match["page"]), 4)
    yield Found("window_tokens", whole(match["page"]) * whole(match["blocks"]))


def _events(name: str, anchor: str, pattern: str) -> Form:
    return reading(ENGINE, anchor, pattern, lambda _match, _line: [Found("event", name)])


FORMS: tuple[Form, ...] = (
    reading(
        ENGINE,
        "for max tokens in paged KV cache",
        r"Allocated (?P<gib>{F}) [GM]i?B for max tokens in paged KV cache \((?P<tokens>{N})\)",
        _read_allocated,
    ),
    plain(ENGINE, "tokens in paged KV cache.", r"Using (?P<pool_tokens>{N}) tokens in paged KV cache\.", weight=6),
    plain(ENGINE, "okens per block: ", r"[Nn]umber of tokens per block: (?P<page_size>{N})(?=[.\s])", weight=6),
    plain(
        ENGINE,
        "blocks in KV cache primary pool: ",
        r"Number of blocks in KV cache primary pool: (?P<primary_blocks>{N})",
    ),
    reading(
        ENGINE,
        "KV cache blocks per sequence: ",
        r"Max KV cache blocks per sequence: {N} \[window size=(?P<window>{N})\], tokens per block=(?P<page>{N}), "
        r"primary blocks=(?P<blocks>{N}),",
        _read_window,
    ),
    plain(ENGINE, "max_seq_len=", r"\[TRT-LLM\].{0,40}\bmax_seq_len=(?P<context_len>{N}), max_num_requests=", weight=8),
    plain(
        ENGINE,
        "max_seq_len=",
        r"\[TRT-LLM\].{0,40}\bmax_seq_len=(?P<context_len>{N}), max_num_requests={N}, "
        r"max_num_tokens=(?P<max_num_tokens>{N})",
        weight=8,
    ),
    plain(ENGINE, "Adjusted max_seq_len to ", r"Adjusted max_seq_len to (?P<context_len>{N})(?=\s|$)", weight=7),
    plain(ENGINE, "TensorRT-LLM version: ", r"TensorRT-LLM version: (?P<version>\d+\.\d+[\w.+-]*)", weight=6),
    plain(ENGINE, "TensorRT LLM version: ", r"TensorRT LLM version: (?P<version>\d+\.\d+[\w.+-]*)", weight=6),
    plain(ENGINE, "KV cache block reuse is ", r"KV cache block reuse is enabled", Found("prefix_cache", "enabled")),
    plain(ENGINE, "KV cache block reuse is ", r"KV cache block reuse is disabled", Found("prefix_cache", "disabled")),
    _events(
        "refused_to_start",
        "maxTokensInPagedKvCache",
        r"maxTokensInPagedKvCache (?:\(\d+\) )?must be large enough to process at least 1 sequence",
    ),
    _events(
        "storeContextBlocks_missing_sequence",
        "storeContextBlocks: Can not find sequence",
        r"storeContextBlocks: Can not find sequence",
    ),
    reading(
        "",
        "Sync batch data transfer timeout",
        r"Sync batch data transfer timeout",
        lambda _match, _line: [Found("event", "sync_batch_timeout")],
    ),
)


def derive(book: Notebook) -> None:
    """The pool from blocks where no allocation line tells it; windows that differ are sub-pools."""
    windows = book.all("window")
    sizes = sorted({int(reading.value) for reading in windows})
    if "manager_without_memory" in book and "pool_tokens" not in book:
        return
    if sizes and "context_len" not in book:
        book.derive(Found("context_len", sizes[-1], 4), windows[-1])
    page, primary = book.number("page_size"), book.choose("primary_blocks")
    if len(sizes) > 1:
        tokens = {int(w.value): t for w, t in zip(windows, book.all("window_tokens"), strict=False)}
        book.derive(Found("pool_tokens", tokens[sizes[-1]].value, 9), tokens[sizes[-1]])
        book.derive(Found("pool_tokens_swa", tokens[sizes[0]].value, 9), tokens[sizes[0]])
        book.derive(Found("hybrid_model", True), windows[-1])
    elif "pool_tokens" not in book and windows:
        last = book.all("window_tokens")[-1]
        book.derive(Found("pool_tokens", last.value, 4), last, "primary blocks x tokens per block")
    elif "pool_tokens" not in book and page and primary is not None:
        book.derive(Found("pool_tokens", int(primary.value) * page, 4), primary, "primary blocks x tokens per block")
