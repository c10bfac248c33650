"""Where the guard enters vLLM: what its connector overrides, and what it reads of vLLM beside that.

A release that lacks one is refused by that name; a release that nobody has tried starts only where all are there.
"""

from kvfence.guard.points import Point

TRIED = ("0.29.0", "0.31.0", "0.32.0")
"""Releases that the cases without a server (``tests/engines/vllm/steps.py``) have run on."""

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_BASE = f"{_V1}.base.KVConnectorBase_V1"
_NIXL = f"{_V1}.nixl.connector.NixlBaseConnector"
_POOL = "vllm.v1.core.block_pool.BlockPool"
_OUTPUT = "vllm.v1.core.sched.output"
_TABLES = f"{_OUTPUT}.KVConnectorBlockState"

POINTS = (
    Point("request-comes", (f"{_NIXL}.on_new_request",)),
    Point("request-matched", (f"{_NIXL}.get_num_new_matched_tokens",)),
    Point("blocks-reserved", (f"{_NIXL}.update_state_after_alloc",)),
    Point("step-built", (f"{_NIXL}.build_connector_meta",)),
    Point("step-ended", (f"{_NIXL}.update_connector_output",)),
    Point("request-ended", (f"{_NIXL}.request_finished_all_groups",)),
    Point("pool-bound", (f"{_BASE}.bind_gpu_block_pool",)),
    Point("caches-made", (f"{_NIXL}.register_kv_caches",)),
    Point("step-begins", (f"{_BASE}.bind_connector_metadata",)),
    Point("transfers-polled", (f"{_NIXL}.get_transfer_results", f"{_NIXL}.get_finished")),
    Point("blocks-failed", (f"{_NIXL}.get_block_ids_with_load_errors",)),
    Point("rank-reports", (f"{_BASE}.build_connector_worker_meta",)),
    Point("counts", (f"{_NIXL}.get_kv_connector_stats",)),
    Point("counts-made", (f"{_NIXL}.build_kv_connector_stats",)),
    Point("counts-shown", (f"{_NIXL}.build_prom_metrics",)),
    Point("blocks-granted", (f"{_POOL}.get_new_blocks",)),
    Point("blocks-held", (f"{_POOL}.touch",)),
    Point("step-tables", (f"{_TABLES}.get_block_ids", f"{_TABLES}.block_ids")),
    Point("step-begins-at", (f"{_OUTPUT}.NewRequestData.num_computed_tokens",)),
    Point("step-goes-on-at", (f"{_OUTPUT}.CachedRequestData.num_computed_tokens",)),
    Point("stats", (f"{_V1}.nixl.stats.NixlKVConnectorStats",)),
    Point("metrics", (f"{_V1}.nixl.stats.NixlPromMetrics",)),
)

WHOLE_RECEIVES = Point("receive-fails-whole", (f"{_NIXL}.get_transfer_results",))
"""Where a release lacks it, a failed receive is told block by block, which a hybrid model's blocks are too many for."""
