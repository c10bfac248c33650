"""Samples of ``/metrics`` and of a Prometheus server: pool, context, role and signatures of SGLang and vLLM.

Not for: asking a server (``endpoints.py``, ``prometheus.py``).
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from kvfence.evidence import sglang, vllm
from kvfence.evidence.forms import reading
from kvfence.evidence.readings import Form, Found, Line, Place

SIZE_MAX = 10**15
"""No pool is larger; a sample that is no number, or no bound, says nothing."""
_NUMBERS = {
    "sglang:max_total_num_tokens": "gauge_pool_tokens",
    "sglang:max_total_num_tokens_swa": "pool_tokens_swa",
    "sglang:context_len": "context_len",
    "sglang:page_size": "page_size",
}
_COUNTERS = {
    "vllm:nixl_num_notifications_after_expiry": "nixl_read_after_expiry",
    "vllm:nixl_num_kv_expired_reqs": "expired_blocks_released",
    "vllm:nixl_num_failed_transfers": "nixl_transfer_failure",
    "sglang:num_transfer_failed_reqs": "transfer_failed",
}
NAMES = (
    *_NUMBERS,
    "vllm:cache_config_info",
    *_COUNTERS,
    "sglang:decode_deferred_kv_release",
    "vllm:kv_cache_usage_perc",
)
_ROLES = {"prefill": "prefill", "decode": "decode", "unified": "single", "null": "single"}


def read_sample(name: str, labels: Mapping[str, str], value: float) -> Iterator[Found]:
    """What one sample says."""
    base = name.removesuffix("_total")
    if name in _NUMBERS and 0 <= value <= SIZE_MAX and value == int(value):
        yield Found(_NUMBERS[name], int(value), 9)
    elif name == "vllm:cache_config_info":
        yield from vllm.read_cache_config(labels)
    elif base in _COUNTERS and value > 0:
        yield Found("event", _COUNTERS[base])
    elif base == "sglang:decode_deferred_kv_release":
        yield Found("deferred_release", True)
        if labels.get("outcome") == "timeout" and value > 0:
            yield Found("event", "deferred_release_timeout")
    if role := _ROLES.get(labels.get("engine_type", "")):
        yield Found("role", role)
    if (model := labels.get("model_name", "")) and name.startswith(("sglang:", "vllm:")):
        yield Found("model", model, 2)


def place_of_sample(labels: Mapping[str, str], process: str = "") -> Place:
    """Whose sample it is: the scraped instance, the engine's index, the data-parallel rank."""
    parts = [process, labels.get("instance", "") or labels.get("pod", ""), labels.get("engine", "")]
    rank = labels.get("dp_rank", "")
    return Place(" ".join(part for part in parts if part), int(rank) if re.fullmatch(r"\d{1,6}", rank) else None)


def _read_line(match: re.Match[str], line: Line) -> Iterable[Found]:
    if line.text.lstrip().startswith("#"):
        return
    try:
        families = list(text_string_to_metric_families(match["sample"] + "\n"))
    except (ValueError, IndexError, KeyError):
        return
    for family in families:
        for sample in family.samples:
            line.place = place_of_sample(sample.labels, line.place.process)
            yield from read_sample(sample.name, sample.labels, sample.value)


_SAMPLE = r"(?<![\w:.])(?P<sample>%s:\w{1,80}(?:\{[^\n{]{0,16000}\})?\s+[-+]?\d[\d.eE+-]{0,30})(?=\s|$)"

FORMS: tuple[Form, ...] = tuple(
    reading(engine, tuple(name for name in NAMES if name.startswith(engine)), _SAMPLE % engine, _read_line)
    for engine in (sglang.ENGINE, vllm.ENGINE)
)
