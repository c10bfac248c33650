"""Where the guard enters SGLang: dotted names, the same list for loading and for reading a wheel.

A release that lacks one is refused by that name. Where releases differ, alternatives stand in order of preference.
"""

import pkgutil
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

How = Literal["before", "after", "around"]


class Point(Struct, frozen=True):
    """One place. ``names``: alternatives; the first that a release has is hooked. ``how``: where the guard stands."""

    key: str
    names: tuple[str, ...]
    how: How = "around"


_DISAGG = "sglang.srt.disaggregation"
_COMMON = f"{_DISAGG}.common.conn"
_MOONCAKE = f"{_DISAGG}.mooncake.conn"
_DECODE = f"{_DISAGG}.decode"
_QUEUE = f"{_DECODE}.DecodeTransferQueue"

POINTS = (
    Point("manager-made", (f"{_COMMON}.CommonKVManager.__init__",), "after"),
    Point("status-sent", (f"{_COMMON}.CommonKVManager._send_multipart_locked",)),
    Point("prefill-reached", (f"{_COMMON}.CommonKVReceiver._connect_to_bootstrap_server",)),
    Point("receiver-made", (f"{_COMMON}.CommonKVReceiver.__init__",), "after"),
    Point("receiver-polled", (f"{_MOONCAKE}.MooncakeKVReceiver.poll", f"{_COMMON}.CommonKVReceiver.poll")),
    Point("receiver-cleared", (f"{_COMMON}.CommonKVReceiver.clear",)),
    Point("sender-cleared", (f"{_COMMON}.CommonKVSender.clear",), "after"),
    Point("pages-sent", (f"{_MOONCAKE}.MooncakeKVManager.add_transfer_request",)),
    Point("chunk-sent", (f"{_DISAGG}.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",), "before"),
    Point("prefill-admits", (f"{_DISAGG}.prefill.PrefillBootstrapQueue.add",)),
    Point("decode-admits", (f"{_DECODE}.DecodePreallocQueue.add",)),
    Point("decode-reserves", (f"{_DECODE}.alloc_for_decode_prealloc",), "before"),
    Point("decode-places", (f"{_DECODE}.DecodePreallocQueue.pop_preallocated",)),
    Point("decode-aborts", (f"{_DECODE}.prepare_abort",)),
    Point("decode-releases", (f"{_DECODE}.release_kv_cache",)),
    Point("decode-turns", (f"{_QUEUE}.resolve_deferred_releases",), "after"),
    Point("decode-holds", (f"{_QUEUE}.has_pending_deferred_releases",)),
    Point("row-freed", (f"{_DISAGG}.utils.ReqToMetadataIdxAllocator.free",)),
)


def found(point: Point) -> str | None:
    """Give the first of a point's names that stands in the installed release; None where none does.

    A method counts where it is written, not where it is inherited.
    """
    return next((name for name in point.names if _is_there(name)), None)


def unwrapped(names: Iterable[str]) -> list[str]:
    """Give those that nothing wraps: SGLang logs a hook that it could not apply, and goes on."""
    return [name for name in names if not hasattr(pkgutil.resolve_name(name), "__wrapped__")]


def _is_there(name: str) -> bool:
    owner_name, _, attribute = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_name)
    except (ImportError, AttributeError):
        return False
    return attribute in vars(owner)
