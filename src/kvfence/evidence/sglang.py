"""SGLang: its start-up and run-time lines, its argument list, its ``/server_info``.

Source: line formats of 0.4.3 to 0.5.23, of ``model_runner``, ``scheduler``, ``disaggregation`` and ``kv_canary``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.arguments import Argument, pairs, stated
from kvfence.evidence.forms import plain, reading, settling, whole
from kvfence.evidence.lines import json_record
from kvfence.evidence.readings import Form, Found, Line, Notebook

ENGINE = "sglang"
INPUT_MARGIN = 6
"""``max_req_input_len`` is min(context, pool) - 1 - 5. Source: tp_worker, 0.4.3 to 0.5.23."""

CONTEXT_STEP = 256
"""Context lengths are multiples of this; another number at the very end of a line is taken for half a number."""

ARGUMENTS: dict[str, Argument] = {
    "model_path": Argument("model"),
    "context_length": Argument("context_len", "int", 4),
    "page_size": Argument("page_size", "int"),
    "dtype": Argument("dtype"),
    "kv_cache_dtype": Argument("kv_dtype"),
    "quantization": Argument("quantisation"),
    "mem_fraction_static": Argument("memory_fraction", "float"),
    "tp_size": Argument("tp_size", "int"),
    "pp_size": Argument("pp_size", "int"),
    "dp_size": Argument("dp_size", "int"),
    "dcp_size": Argument("cp_size", "int"),
    "attn_cp_size": Argument("cp_size", "int", 4),
    "enable_dp_attention": Argument("dp_attention", "flag"),
    "speculative_algorithm": Argument("speculation"),
    "disaggregation_transfer_backend": Argument("transfer_backend"),
    "disaggregation_enable_kv_checksum": Argument("kv_checksum_requested", "flag"),
    "kv_canary": Argument("kv_canary_requested"),
    "kv_canary_real_data": Argument("kv_canary_real_data", weight=4),
    "allow_auto_truncate": Argument("auto_truncate", "flag"),
    "api_key": Argument("api_key_set", "set"),
    "max_req_input_len": Argument("effective_input_limit", "int", 8),
    "max_total_num_tokens": Argument("pool_tokens", "int", 9),
    "version": Argument("version"),
}

EVENT_METRICS = {"sglang:decode_deferred_kv_release_total": ("outcome", "timeout", "deferred_release_timeout")}


def read_arguments(arguments: Mapping[str, object]) -> Iterator[Found]:
    """Facts that a set of resolved server arguments states."""
    yield from stated(arguments, ARGUMENTS)
    yield from _role(arguments.get("disaggregation_mode", ""))
    if arguments.get("disable_cuda_graph") is True:
        yield Found("cuda_graph", "disabled")
    elif isinstance(arguments.get("cuda_graph_max_bs"), int):
        yield Found("cuda_graph", f"max_bs={arguments['cuda_graph_max_bs']}")
    elif arguments.get("disable_cuda_graph") is False:
        yield Found("cuda_graph", "enabled", 4)
    if arguments.get("disable_radix_cache") is True:
        yield Found("prefix_cache", "disabled")
    yield from _outer_cache(arguments)
    if "metrics_http_port" in arguments or "host" in arguments:
        yield from _listener(arguments)


def _role(mode: object) -> Iterator[Found]:
    role = {"prefill": "prefill", "decode": "decode", "null": "single", "unified": "single"}.get(str(mode))
    if role:
        yield Found("role", role, near="disaggregation_mode")


def _outer_cache(arguments: Mapping[str, object]) -> Iterator[Found]:
    if arguments.get("enable_lmcache") is True:
        yield Found("outer_cache", "LMCache")
    elif arguments.get("enable_hierarchical_cache") is True:
        storage = arguments.get("hicache_storage_backend")
        yield Found("outer_cache", f"HiCache:{storage}" if isinstance(storage, str) else "HiCache")


def _listener(arguments: Mapping[str, object]) -> Iterator[Found]:
    host, port = arguments.get("host"), arguments.get("disaggregation_bootstrap_port")
    if isinstance(host, str) and isinstance(port, int) and arguments.get("disaggregation_mode") == "prefill":
        yield Found("side_channel", f"bootstrap {host}:{port}")


def read_server_info(info: Mapping[str, object]) -> Iterator[Found]:
    """Facts of ``GET /server_info``: the argument list, the pool and the limit that the scheduler computed."""
    yield from read_arguments(info)
    states = info.get("internal_states")
    capacities: list[int] = []
    for state in states if isinstance(states, list) else []:
        memory = state.get("memory_usage") if isinstance(state, dict) else None
        capacity = memory.get("token_capacity") if isinstance(memory, dict) else None
        if isinstance(capacity, int) and not isinstance(capacity, bool):
            capacities.append(capacity)
    if capacities:
        yield Found("pool_tokens", min(capacities), 8)


_STATED_ROLE = re.compile(
    r"(?<![\w/.-])(prefill|decode)(?:[ -](?:leg|worker|server|node|instance|role|engine|side))?"
    r"(?:\s{0,12}[(\[][^)\]]{0,60}[)\]]){0,4}\s{0,12}[:|-]?\s{0,12}$",
    re.IGNORECASE,
)
_OWN_LINE = re.compile(r"^\s*\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def _read_pool(match: re.Match[str], line: Line) -> Iterable[Found]:
    text = match.string
    ends = match.end() >= len(text.rstrip())
    if ends and not match["own"] and (_OWN_LINE.match(text) or '"' in match[0]):
        return  # the engine's own line goes on after the number, and so does JSON: this one was cut off
    yield Found("pool_tokens", whole(match["pool"]), 6 if match["own"] else 9)
    if stated_role := _STATED_ROLE.search(text[max(0, match.start() - 300) : match.start()]):
        yield Found("role", stated_role[1].lower(), 3)


def _read_context(match: re.Match[str], line: Line) -> Iterable[Found]:
    """The context; where the line ends with it (as old releases' lines do) it may also have been cut off."""
    context = whole(match["context"])
    if match.end() >= len(match.string.rstrip()):
        if context % CONTEXT_STEP:
            return
        line.problem = f"line {line.number} ends right after context_len={context}: an old release, or cut off"
    yield Found("context_len", context, 9)


def _read_info_line(match: re.Match[str], _line: Line) -> Iterable[Found]:
    record = json_record(match[0])
    if record is not None:
        yield from read_server_info(record)


def _read_server_args(match: re.Match[str], _line: Line) -> Iterable[Found]:
    text = match.string
    yield from read_arguments(dict(pairs(text, match.end() - 1)))


def _read_leak(match: re.Match[str], line: Line) -> Iterable[Found]:
    text = " ".join([match.string, *line.rest(8)]) if match.string == line.text else match.string
    sizes = {
        found[1]: whole(found[2])
        for found in re.finditer(
            r"(?<![\w.])(?:self\.)?(\w+(?:_size|_tokens)(?!\())\s*=\s*(\d{1,15})(?!\d)", text[match.start() :]
        )
    }
    yield Found("event", "memory_leak")
    pool, available = sizes.get("max_total_num_tokens"), sizes.get("available_size")
    if pool is None or available is None:
        return
    leak = pool - available - sizes.get("evictable_size", 0) - sizes.get("protected_size", 0)
    yield Found("leak_tokens", leak)
    if leak < 0:
        yield Found("event", "memory_leak_double_free")


def _read_canary(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("kv_canary_active", True)
    yield Found("pool_class", match["pool"])
    yield Found("event", "canary_attached")
    if match["bytes"] is not None:
        read_bytes = int(match["bytes"])
        yield Found("kv_canary_real_data", "none" if read_bytes == 0 else ("partial" if read_bytes <= 16 else "all"), 8)


def _read_exceeds(match: re.Match[str], line: Line) -> Iterable[Found]:
    yield Found("effective_input_limit", whole(match["limit"]), 7)
    yield Found("event", "input_exceeds_limit")
    rid = re.search(r"rid='([^']{1,80})'", match.string[match.end() :])
    answered = False
    for following in line.rest(40):
        if rid and rid[1] in following and re.search(r"prompt_tokens\\?['\"]: 1\b", following):
            yield Found("event", "prompt_tokens_1_beside_long")
        if not answered and re.search(r'"POST /[^"]{0,200}" \d{3}', following):
            answered = True
            if re.search(r'" 200\b', following):
                yield Found("event", "exceeds_then_200")


def _read_one_token(match: re.Match[str], line: Line) -> Iterable[Found]:
    text = match.string
    others = [
        whole(count)
        for count in re.findall(r"prompt_tokens\\?['\"]?\s*[=:]\s*(\d{1,12})\b", " ".join((text, *line.rest(3))))
    ]
    stub = re.search(r"'type': 'length', 'length': 0\}", text)
    if stub or any(count > 1 for count in others):
        yield Found("event", "prompt_tokens_1_beside_long")


def _read_allocated(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("allocated_tokens", whole(match["tokens"]))


def _events(name: str, anchor: str, pattern: str, *more: Found) -> Form:
    return reading(ENGINE, anchor, pattern, lambda _match, _line: [Found("event", name), *more])


FORMS: tuple[Form, ...] = (
    reading(
        ENGINE,
        "max_total_num_tokens",
        r"(?<![\w:.])(?P<own>self\.)?max_total_num_tokens\\?['\"]?\s?[=:]\s?(?P<pool>{N})",
        _read_pool,
    ),
    reading(ENGINE, "context_len", r"(?<![\w.])context_len\\?['\"]?\s?[=:]\s?(?P<context>{N})", _read_context),
    reading(
        ENGINE, "KV Cache is allocated", r"KV Cache is allocated\..{0,60}?#tokens: (?P<tokens>{N}),", _read_allocated
    ),
    plain(
        ENGINE,
        "liding window memory pool",
        r"liding window memory pool\. full_layer_tokens=(?P<pool_tokens>{N})[^=]{0,40}?, "
        r"swa_layer_tokens=(?P<pool_tokens_swa>{N})",
        Found("hybrid_model", True),
        weight=4,
    ),
    plain(
        ENGINE,
        "memory calculation",
        r"(?i:DSv4) memory calculation: .{0,400}?\bfull_token=(?P<pool_tokens>{N})",
        Found("hybrid_model", True),
        weight=3,
    ),
    plain(
        ENGINE,
        "pool sizes: ",
        r"(?i:DSv4) pool sizes: full=(?P<pool_tokens>{N}), swa=(?P<pool_tokens_swa>{N})",
        Found("hybrid_model", True),
        weight=4,
    ),
    plain(
        ENGINE,
        "SWAKVPool mem usage",
        r"SWAKVPool mem usage: .{0,60}?swa size: (?P<pool_tokens_swa>{N}), full size: (?P<pool_tokens>{N})",
        Found("hybrid_model", True),
        weight=3,
    ),
    plain(
        ENGINE,
        "KV pool holds",
        r"KV pool holds (?P<pool_tokens>{N}) tokens, fewer than --context-length (?P<context_len>{N})\b",
        weight=8,
    ),
    plain(
        ENGINE,
        "mem_fraction_static=",
        r"Memory profiling: .{0,200}?mem_fraction_static=(?P<memory_fraction>{F})",
        weight=4,
    ),
    plain(ENGINE, "Tree cache initialized", r"Tree cache initialized: .{0,80}?\bimpl=(?P<prefix_cache>\w+)(?=\s)"),
    plain(
        ENGINE,
        "Tree cache initialized",
        r"Tree cache initialized: .{0,200}?\bhybrid_swa=True\b",
        Found("hybrid_model", True),
    ),
    reading(ENGINE, "internal_states", r"\{.*\}", _read_info_line),
    reading(ENGINE, "server_args=", r"\bserver_args=(?:ServerArgs\(|\{)", _read_server_args),
    reading(
        ENGINE,
        "exceeds the maximum allowed length",
        r"Input length \({N} tokens\) exceeds the maximum allowed length \((?P<limit>{N}) tokens\)",
        _read_exceeds,
    ),
    plain(
        ENGINE,
        "the model's context length",
        r"The input \({N} tokens\) is longer than the model's context length \((?P<context_len>{N}) tokens\)",
        weight=8,
    ),
    plain(
        ENGINE,
        "max_req_input_len",
        r"(?<!\w)max_req_input_len\\?['\"]?\s?[=:]\s?(?P<effective_input_limit>{N})(?=[,})\s])",
        weight=8,
    ),
    reading(
        ENGINE,
        "memory leak detected!",
        r"(?:token_to_kv_pool_allocator|pool|req_to_token_pool|KV) memory leak detected!",
        _read_leak,
    ),
    reading(
        ENGINE,
        "attach_canary_buffers",
        r"attach_canary_buffers: pool=(?P<pool>\w+)(?=[\s,])(?:.{0,200}?\bread_bytes=(?P<bytes>\d{1,9})\b)?",
        _read_canary,
    ),
    plain(
        ENGINE,
        "no attacher registered for pool class",
        r"kv-canary: no attacher registered for pool class (?P<pool_class>\w+)(?=[;\s])",
        Found("kv_canary_active", False),
    ),
    _events(
        "kv_canary_violation",
        "anary violation",
        r"(?:kv_canary|KV cache canary) violation",
        Found("kv_canary_active", True),
    ),
    _events(
        "kv_checksum_skipped", "KV checksum skipped", r"KV checksum skipped", Found("kv_checksum_active", False, 7)
    ),
    _events(
        "kv_checksum_mismatch",
        "KV checksum mismatch",
        r"KV checksum mismatch (?:req=|on a peer rank)",
        Found("kv_checksum_active", True, 6),
    ),
    _events(
        "kv_checksum_buffers_differ",
        "metadata buffers but this prefill has",
        r"registered \d+ metadata buffers but this prefill has \d+",
        Found("kv_checksum_active", False, 7),
    ),
    _events(
        "deferred_release_timeout",
        "Deferred KV release for room",
        r"Deferred KV release for room \S{1,60} timed out",
        Found("deferred_release", True),
    ),
    plain(
        ENGINE,
        "Deferred KV release for room",
        r"Deferred KV release for room \S{1,60} timed out after (?P<release_timeout_s>{F})s",
    ),
    _events("generationless_ack", "Generation-less ABORT_ACK", r"Generation-less ABORT_ACK"),
    _events("context_corruption", "Context corruption detected", r"Context corruption detected"),
    _events("transfer_failed", "ecode transfer failed", r"Decode transfer failed for request"),
    _events("transfer_failed", "refill transfer failed", r"Prefill transfer failed for request"),
    _events(
        "prompt_auto_truncated",
        "max context length. Truncated.",
        r"KV cache pool size or the max context length\. Truncated\.",
        Found("auto_truncate", True),
    ),
    settling(plain(ENGINE, "#inflight-req:", r"Prefill batch.{0,400}#inflight-req:", Found("role", "prefill", 4))),
    settling(plain(ENGINE, "#transfer-req:", r"Decode batch.{0,400}#transfer-req:", Found("role", "decode", 4))),
    reading(
        ENGINE,
        (
            "prompt_tokens=1,",
            "prompt_tokens=1 ",
            "prompt_tokens=1;",
            "prompt_tokens': 1,",
            'prompt_tokens": 1,',
            'prompt_tokens":1,',
            'prompt_tokens\\": 1,',
        ),
        r"prompt_tokens\\?['\"]?\s*[=:]\s*1(?=[,;\s}])",
        _read_one_token,
    ),
)


def derive(book: Notebook) -> None:
    """Work out what follows: the pool from an allocation, an estimate of the pool from the limit it sets."""
    allocated = {reading.value for reading in book.all("allocated_tokens")}
    if "pool_tokens" not in book and len(allocated) == 1:
        book.derive(Found("pool_tokens", next(iter(allocated)), 2), book.all("allocated_tokens")[-1])
    gauges = book.all("gauge_pool_tokens")
    if gauges:
        smallest = min(gauges, key=lambda each: float(each.value))
        book.derive(Found("pool_tokens", smallest.value, 9), smallest)
    limit, context = book.choose("effective_input_limit"), book.number("context_len")
    if "pool_tokens" in book or limit is None or context is None:
        return
    bound = int(limit.value) + INPUT_MARGIN
    if bound < context:
        book.derive(Found("pool_tokens_estimated", bound, 5), limit, "limit + 6")
