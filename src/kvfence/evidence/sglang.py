"""SGLang: its argument list and its ``/server_info``; its lines stand in ``sglang_lines.py``.

Source: ``server_args`` and ``http_server`` of 0.5.9 to 0.5.23.
"""

from collections.abc import Iterator, Mapping

from kvfence.evidence.arguments import Argument, stated
from kvfence.evidence.readings import Found, Notebook
from kvfence.evidence.starts import settle_starts

ENGINE = "sglang"
INPUT_MARGIN = 6
"""``max_req_input_len`` is min(context, pool) - 1 - 5. Source: tp_worker, 0.4.3 to 0.5.23."""
REFUSAL_RETIRED_IN = "0.5.20"
"""The first release that retires a refused request before it is handed to decode. Source: sgl-project/sglang#36988."""

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
    if "speculative_algorithm" in arguments and arguments["speculative_algorithm"] is None:
        yield Found("speculation", "none")
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
    elif arguments.get("enable_hierarchical_cache") is False:
        if arguments.get("disaggregation_decode_enable_offload_kvcache") is not True:
            yield Found("outer_cache", "none")


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


def derive(book: Notebook) -> None:
    """Work out what follows: the pool from an allocation, an estimate of the pool from the limit it sets."""
    settle_starts(book)
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
