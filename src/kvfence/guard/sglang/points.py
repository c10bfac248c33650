"""Where the guard enters SGLang: dotted names, the same list for loading and for reading a wheel.

A release that lacks one is refused by that name. Where releases differ, alternatives stand in order of preference.
"""

import pkgutil

from msgspec import Struct


class Point(Struct, frozen=True):
    """One place. ``names``: alternatives; the first that a release has is hooked."""

    key: str
    names: tuple[str, ...]


_DISAGG = "sglang.srt.disaggregation"
_COMMON = f"{_DISAGG}.common.conn"
_MOONCAKE = f"{_DISAGG}.mooncake.conn"

POINTS = (
    Point("manager-made", (f"{_COMMON}.CommonKVManager.__init__",)),
    Point("status-sent", (f"{_COMMON}.CommonKVManager._send_multipart_locked",)),
    Point("prefill-reached", (f"{_COMMON}.CommonKVReceiver._connect_to_bootstrap_server",)),
    Point("receiver-made", (f"{_COMMON}.CommonKVReceiver.__init__",)),
    Point("receiver-polled", (f"{_MOONCAKE}.MooncakeKVReceiver.poll", f"{_COMMON}.CommonKVReceiver.poll")),
    Point("receiver-cleared", (f"{_COMMON}.CommonKVReceiver.clear",)),
    Point("sender-cleared", (f"{_COMMON}.CommonKVSender.clear",)),
    Point("pages-sent", (f"{_MOONCAKE}.MooncakeKVManager.add_transfer_request",)),
    Point("chunk-sent", (f"{_DISAGG}.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",)),
    Point("prefill-admits", (f"{_DISAGG}.prefill.PrefillBootstrapQueue.add",)),
    Point("decode-admits", (f"{_DISAGG}.decode.DecodePreallocQueue.add",)),
    Point("decode-reserves", (f"{_DISAGG}.decode.alloc_for_decode_prealloc",)),
    Point("decode-aborts", (f"{_DISAGG}.decode.prepare_abort",)),
    Point("decode-releases", (f"{_DISAGG}.decode.release_kv_cache",)),
)


def found(point: Point) -> str | None:
    """Give the first of a point's names that stands in the installed release; None where none does.

    A method counts where it is written, not where it is inherited.
    """
    return next((name for name in point.names if _is_there(name)), None)


def unhooked() -> list[str]:
    """Give the points whose functions nothing wraps: SGLang logs a hook that it could not apply, and goes on."""
    names = {point.key: found(point) for point in POINTS}
    return [
        key for key, name in names.items() if name is None or not hasattr(pkgutil.resolve_name(name), "__wrapped__")
    ]


def _is_there(name: str) -> bool:
    owner_name, _, attribute = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_name)
    except (ImportError, AttributeError):
        return False
    return attribute in vars(owner)
