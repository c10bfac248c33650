"""Where the guard enters SGLang: dotted names, the same list for loading and for reading a wheel.

A release that lacks one is refused by that name. Where releases differ, alternatives stand in order of preference.
"""

import pkgutil
from collections.abc import Iterable

from kvfence.guard.points import Point as Point
from kvfence.guard.points import found as found

_DISAGG = "sglang.srt.disaggregation"
_COMMON = f"{_DISAGG}.common.conn"
_MOONCAKE = f"{_DISAGG}.mooncake.conn"
_DECODE = f"{_DISAGG}.decode"
_QUEUE = f"{_DECODE}.DecodeTransferQueue"
_TOKEN = "sglang.srt.mem_cache.allocator.token.TokenToKVPoolAllocator"
_PAGED = "sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

POINTS = (
    Point("manager-made", (f"{_COMMON}.CommonKVManager.__init__",), "after"),
    Point("status-sent", (f"{_COMMON}.CommonKVManager._send_multipart_locked",)),
    Point("prefill-reached", (f"{_COMMON}.CommonKVReceiver._connect_to_bootstrap_server",)),
    Point("receiver-made", (f"{_COMMON}.CommonKVReceiver.__init__",), "after"),
    Point("receiver-polled", (f"{_MOONCAKE}.MooncakeKVReceiver.poll", f"{_COMMON}.CommonKVReceiver.poll")),
    Point("receiver-cleared", (f"{_COMMON}.CommonKVReceiver.clear",)),
    Point("probe-told", (f"{_DISAGG}.fake.conn.FakeKVReceiver.send_metadata",), "before"),
    Point("sender-cleared", (f"{_COMMON}.CommonKVSender.clear",), "after"),
    Point("pages-sent", (f"{_MOONCAKE}.MooncakeKVManager.add_transfer_request",)),
    Point("chunk-sent", (f"{_DISAGG}.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",), "before"),
    Point("request-read", (f"{_SCHEDULER}.handle_generate_request",), "before"),
    Point("prefill-admits", (f"{_DISAGG}.prefill.PrefillBootstrapQueue.add",)),
    Point("decode-admits", (f"{_DECODE}.DecodePreallocQueue.add",)),
    Point("decode-reserves", (f"{_DECODE}.alloc_for_decode_prealloc",), "before"),
    Point("decode-places", (f"{_DECODE}.DecodePreallocQueue.pop_preallocated",)),
    Point("decode-aborts", (f"{_DECODE}.prepare_abort",)),
    Point("decode-releases", (f"{_DECODE}.release_kv_cache",)),
    Point("decode-turns", (f"{_QUEUE}.resolve_deferred_releases",), "after"),
    Point("decode-holds", (f"{_QUEUE}.has_pending_deferred_releases",)),
    Point("row-freed", (f"{_DISAGG}.utils.ReqToMetadataIdxAllocator.free",)),
    Point("token-grants", (f"{_TOKEN}.alloc",), "after"),
    Point("token-frees", (f"{_TOKEN}.free",)),
    Point("token-clears", (f"{_TOKEN}.clear",), "after"),
    Point("paged-grants", (f"{_PAGED}.alloc",), "after"),
    Point("paged-extends", (f"{_PAGED}.alloc_extend",), "after"),
    Point("paged-decodes", (f"{_PAGED}.alloc_decode",), "after"),
    Point("paged-frees", (f"{_PAGED}._release_page_ids",)),
    Point("paged-clears", (f"{_PAGED}.clear",), "after"),
    Point("table-freed", ("sglang.srt.mem_cache.memory_pool.ReqToTokenPool.free",), "before"),
    Point("decode-table-freed", (f"{_DECODE}.DecodeReqToTokenPool.free",), "before"),
    Point("roles-made", (f"{_SCHEDULER}.init_disaggregation",), "after"),
    Point("pass-begins", (f"{_SCHEDULER}.run_batch",), "before"),
    Point("pass-ends", (f"{_SCHEDULER}.process_batch_result",), "before"),
)


def unwrapped(names: Iterable[str]) -> list[str]:
    """Give those that nothing wraps: SGLang logs a hook that it could not apply, and goes on."""
    return [name for name in names if not hasattr(pkgutil.resolve_name(name), "__wrapped__")]
