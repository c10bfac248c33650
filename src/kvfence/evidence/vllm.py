"""vLLM: its start-up and run-time lines, its argument lists, its metrics.

Source: line formats of 0.2 to 0.32 as printed by ``executor``, ``kv_cache_utils``, ``core`` and the KV connectors.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kvfence.evidence.arguments import Argument, nested, pairs, stated, without_negative
from kvfence.evidence.forms import plain, reading, whole
from kvfence.evidence.readings import Form, Found, Line, Notebook

ENGINE = "vllm"
V0_BLOCK_TOKENS = 16
"""``--block-size`` of the engine that logged "# GPU blocks", where not set. Source: vLLM 0.2 to 0.8, EngineArgs."""

ASK_PREFILL: dict[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""``kv_transfer_params`` of a request to prefill, as a proxy for NIXL words them."""

ARGUMENTS: dict[str, Argument] = {
    "model": Argument("model", weight=4),
    "model_tag": Argument("model"),
    "max_model_len": Argument("context_len", "int", 4),
    "max_seq_len": Argument("context_len", "int", 6),
    "block_size": Argument("page_size", "int", 4),
    "dtype": Argument("dtype"),
    "kv_cache_dtype": Argument("kv_dtype"),
    "quantization": Argument("quantisation"),
    "gpu_memory_utilization": Argument("memory_fraction", "float"),
    "tensor_parallel_size": Argument("tp_size", "int"),
    "pipeline_parallel_size": Argument("pp_size", "int"),
    "data_parallel_size": Argument("dp_size", "int"),
    "decode_context_parallel_size": Argument("cp_size", "int"),
    "api_key": Argument("api_key_set", "set"),
}
_GRAPHS = {True: "disabled", False: "enabled"}
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_OUTER = re.compile(r"LMCache|MooncakeStore|Offloading|HF3FS|FlexKV|SharedStorage|Example")


def read_arguments(arguments: Mapping[str, object]) -> Iterator[Found]:
    """Facts that a set of engine arguments states."""
    yield from without_negative(stated(arguments, ARGUMENTS), {"context_len"})
    yield from _auto(arguments.get("max_model_len"))
    if isinstance(eager := arguments.get("enforce_eager"), bool):
        yield Found("cuda_graph", _GRAPHS[eager], 5 if eager else 4)
    if isinstance(prefix := arguments.get("enable_prefix_caching"), bool):
        yield Found("prefix_cache", "enabled" if prefix else "disabled")
    speculation = arguments.get("speculative_config") or arguments.get("speculative_model")
    if isinstance(speculation, (str, Mapping)) and speculation:
        method = nested(speculation).get("method")
        yield Found("speculation", method if isinstance(method, str) else str(speculation)[:80])
    for flag, role in (("is_prefill_worker", "prefill"), ("is_decode_worker", "decode")):
        if arguments.get(flag) is True:
            yield Found("role", role, near=flag)
    mode = str(arguments.get("disaggregation_mode", ""))
    if mode in ("prefill", "decode"):
        yield Found("role", mode, near="disaggregation_mode")
    yield from read_transfer_config(nested(arguments.get("kv_transfer_config")))


def _auto(value: object) -> Iterator[Found]:
    if value is None:
        return
    is_auto = value in (-1, "-1", "auto")
    yield Found("context_auto", is_auto)
    if not is_auto and isinstance(value, int):
        yield Found("context_len_requested", value, 3)


def read_transfer_config(config: Mapping[str, object]) -> Iterator[Found]:
    """Facts of ``--kv-transfer-config``: connector, role, failure policy, lease."""
    connector = config.get("kv_connector")
    if not isinstance(connector, str):
        return
    yield Found("connector", connector, near="kv_connector")
    if _OUTER.search(connector):
        yield Found("outer_cache", connector)
    role = _ROLES.get(str(config.get("kv_role")))
    if role:
        yield Found("role", role, near="kv_role")
    policy = config.get("kv_load_failure_policy")
    if isinstance(policy, str):
        yield Found("failure_policy", policy)
    extra = nested(config.get("kv_connector_extra_config"))
    lease = extra.get("kv_lease_duration")
    if isinstance(lease, (int, float)) and not isinstance(lease, bool):
        yield Found("release_timeout_s", float(lease))
    backends = extra.get("backends")
    if isinstance(backends, str):
        yield Found("transfer_backend", backends.strip("[]'\" "))


def _read_non_default(match: re.Match[str], _line: Line) -> Iterable[Found]:
    arguments = dict(pairs(match.string, match.end() - 1))
    yield from read_arguments(arguments)
    if (
        match["what"] == "non-default args"
        and _is_whole(match.string, match.end() - 1)
        and "kv_transfer_config" not in arguments
    ):
        yield Found("role", "single", 2, "vllm: --kv-transfer-config is not among the non-default arguments")


def _is_whole(text: str, start: int) -> bool:
    depth = 0
    for piece in re.finditer(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[(\[{]|[)\]}]", text[start:]):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(piece[0], 0)
        if depth == 0 and piece[0] in ")]}":
            return True
    return False


def _read_config(match: re.Match[str], _line: Line) -> Iterable[Found]:
    yield Found("engine_start", True)
    if match["version"]:
        yield Found("version", match["version"].removeprefix("v"))
    if match["config"] is not None:
        yield from read_arguments(dict(pairs(match.string, match.start("config"), bare=True)))


def _read_blocks(match: re.Match[str], _line: Line) -> Iterable[Found]:
    device = match["device"].lower()
    if device != "cpu":
        yield Found("device_blocks", whole(match["blocks"]))


def _read_pool(match: re.Match[str], _line: Line) -> Iterable[Found]:
    if match["device"].lower() not in ("host", "offload", "swap"):
        yield Found("worker_pool_tokens", whole(match["pool"]))


def _events(name: str, anchor: str, pattern: str, *more: Found) -> Form:
    return reading(ENGINE, anchor, pattern, lambda _match, _line: [Found("event", name), *more])


_TOO_LONG = (
    r"max seq len \((?P<context_len>{N})\) is larger than the maximum number of tokens that can be stored in KV cache "
    r"\((?P<pool_tokens>{N})\)"
)
_DOES_NOT_FIT = r"To serve at least one request with the models?'s max seq len \((?P<context_len>{N})\)"
_VERSION = r"(?P<version>v?\d+\.\d+[\w.+!-]*)"

FORMS: tuple[Form, ...] = (
    plain("", "vllm==", r"(?<![\w-])vllm==(?P<version>\d+\.\d+[\w.+]*)(?=[\s,;'\"]|$)", weight=2),
    plain(
        ENGINE,
        "vllm/vllm-openai:v",
        r"vllm/vllm-openai:v(?P<version>\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?=[\s'\"@-]|$)",
        weight=2,
    ),
    plain(
        ENGINE,
        "greater than the derived max_model_len",
        r"max_model_len \({N}\) is greater than the derived max_model_len \(\w{1,40}=(?P<model_context>{N})",
    ),
    reading(ENGINE, "KV cache size: ", r"\b(?P<device>[A-Za-z]{2,8}) KV cache size: (?P<pool>{N}) tokens", _read_pool),
    plain(
        ENGINE,
        "Maximum concurrency for ",
        r"Maximum concurrency for (?P<context_len>{N}) tokens per request: \d",
        weight=9,
    ),
    reading(ENGINE, "# CPU blocks: ", r"# (?P<device>\w{2,8}) blocks: (?P<blocks>{N}), # CPU blocks: \d", _read_blocks),
    plain(ENGINE, "tokens that can be stored in KV cache", _TOO_LONG, Found("event", "refused_to_start"), weight=8),
    plain(
        ENGINE,
        "To serve at least one request with the model",
        _DOES_NOT_FIT,
        Found("event", "refused_to_start"),
        weight=8,
    ),
    plain(
        ENGINE,
        "estimated maximum model length is",
        r"estimated maximum model length is (?P<pool_tokens_estimated>{N})\.",
    ),
    plain(
        ENGINE,
        "Auto-fit max_model_len: reduced",
        r"Auto-fit max_model_len: reduced from (?P<context_len_requested>{N}) to (?P<context_len>{N}) to fit",
        Found("context_auto", True),
        weight=8,
    ),
    plain(
        ENGINE,
        "Auto-fit max_model_len: full",
        r"Auto-fit max_model_len: full model context length (?P<context_len>{N}) fits",
        Found("context_auto", True),
        weight=8,
    ),
    plain(ENGINE, "Using max model len ", r"Using max model len (?P<context_len>{N})(?=\s|$)", weight=5),
    plain(
        ENGINE,
        "maximum context length is",
        r"This model's maximum context length is (?P<context_len>{N}) tokens",
        weight=4,
    ),
    plain(ENGINE, "dcp_world_size", r"Multiplying the GPU KV cache size by the dcp_world_size (?P<cp_size>{N})"),
    reading(
        ENGINE,
        "Initializing a",
        rf"Initializing an? (?:V\d )?LLM engine(?: \({_VERSION}\))? with config: (?P<config>.{{0,60000}})?",
        _read_config,
    ),
    plain(ENGINE, "vLLM API server version", rf"vLLM API server version {_VERSION}(?=\s|$)"),
    reading(ENGINE, "non-default args: ", r"(?P<what>non-default args): \{", _read_non_default),
    reading(ENGINE, "args: Namespace(", r"(?P<what>args): Namespace\(", _read_non_default),
    plain(ENGINE, "v1 connector with name: ", r"Creating v1 connector with name: (?P<connector>\w+)(?=\s)", weight=4),
    _events(
        "expired_blocks_released", "Releasing expired KV blocks for request", r"Releasing expired KV blocks for request"
    ),
    _events(
        "nixl_read_after_expiry",
        "Potentially invalid KV blocks",
        r"Potentially invalid KV blocks for unrecognized request",
    ),
    _events("kv_load_failure", "due to KV load failure", r"Failing \d+ request\(s\) due to KV load failure"),
    plain(ENGINE, "due to KV load failure", r"due to KV load failure \(failure_policy=(?P<failure_policy>\w+)\b"),
    _events("nixl_transfer_failure", "NIXL transfer failure", r"NIXL transfer failure"),
    plain(
        "",
        "kv_load_failure_policy",
        r"\bkv_load_failure_policy\\?['\"]?\s?[=:]\s?\\?['\"]?(?P<failure_policy>fail|recompute)\b",
        weight=3,
    ),
    _events(
        "stale_reference_decoded",
        "previous prompt's answer",
        r"previous prompt's answer (?:was |is )?returned\b|returns? (?:the )?previous prompt's answer",
    ),
)


def read_cache_config(labels: Mapping[str, str]) -> Iterator[Found]:
    """Facts of ``vllm:cache_config_info``; the printed block size counts only where it agrees with the token count."""
    blocks, size = _label(labels, "num_gpu_blocks"), _label(labels, "block_size")
    tokens = _label(labels, "kv_cache_size_tokens")
    hybrid = _label(labels, "mamba_block_size") is not None
    if tokens is not None:
        yield Found("gauge_pool_tokens", tokens, 9)
    elif blocks and size and not hybrid:
        yield Found("gauge_pool_tokens", blocks * size, 6)
    if hybrid:
        yield Found("hybrid_model", True)
    if size is not None and (tokens is None or not blocks or abs(blocks * size - tokens) <= size):
        yield Found("page_size", size)
    prefix = labels.get("enable_prefix_caching")
    if prefix in ("True", "False"):
        yield Found("prefix_cache", "enabled" if prefix == "True" else "disabled")
    if labels.get("cache_dtype"):
        yield Found("kv_dtype", labels["cache_dtype"])
    fraction = labels.get("gpu_memory_utilization", "")
    if re.fullmatch(r"0?\.\d{1,6}|1\.0|1", fraction):
        yield Found("memory_fraction", float(fraction))


def _label(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,15}", text) else None


def _least_of_workers(book: Notebook) -> None:
    """Each worker prints its own size and the engine takes the least; what an earlier start printed is past."""
    start = book.choose("engine_start")
    printed = book.all("worker_pool_tokens")
    current = [each for each in printed if start is None or each.order > start.order]
    if printed and not current:
        book.problems.append("the engine started again after it printed its KV cache size: the new size is not shown")
    if current:
        least = min(current, key=lambda each: (float(each.value), -each.order))
        book.derive(Found("pool_tokens", least.value, 8), least)
        if least.value != current[-1].value:
            book.problems.append(
                f"workers print different KV cache sizes: the least is taken (line {least.origin.line})"
            )


def _doubt_single(book: Notebook) -> None:
    """A role worked out from arguments that were not named does not hold where a KV connector is seen."""
    role = book.choose("role")
    if role is not None and role.value == "single" and role.weight <= 2 and "connector" in book:
        book.forget_before("role", role.order + 1)
        book.problems.append("a KV connector is in use, while no argument names one: the role is not known")


def derive(book: Notebook) -> None:
    """Tokens from blocks, the block from both, and the context that an automatic fit left."""
    gauges = book.all("gauge_pool_tokens")
    if gauges:
        smallest = min(gauges, key=lambda each: float(each.value))
        book.derive(Found("pool_tokens", smallest.value, smallest.weight), smallest)
    _least_of_workers(book)
    _doubt_single(book)
    blocks, count = book.choose("device_blocks"), book.number("device_blocks")
    if blocks is None or not count:
        return
    pool, size = book.number("pool_tokens"), book.number("page_size")
    if pool is None:
        default = "" if size else "vllm 0.2 to 0.8: --block-size 16"
        book.derive(Found("pool_tokens", count * (size or V0_BLOCK_TOKENS), 5, default), blocks, "blocks x block size")
        if size is None:
            book.derive(Found("page_size", V0_BLOCK_TOKENS, 2, default), blocks, "--block-size")
    elif size is None and pool % count == 0:
        book.derive(Found("page_size", pool // count, 3), blocks, "tokens / blocks")
