"""Prefill and decode store the KV cache in different number formats.

What it checks:
    The dtype of the KV bytes of both halves of a pair; where it is `auto`, the model's.

Why it matters:
    The bytes of one side mean other numbers on the other: text that is wrong without any error.

Evidence:
    The line that allocates the cache; `kv_cache_dtype` of the server's arguments.

How to fix:
    The same `--kv-cache-dtype` on both roles.

References:
    sgl-project/sglang#39729 (dtype is part of the layout's signature); vllm-project/vllm#48481.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.parity import same
from kvfence.audit.rule import Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, TextFact, Unknown


def _read(engine: Engine) -> TextFact:
    """Give the dtype of the KV bytes: where it is auto, the model's."""
    stored = engine.facts.kv_dtype
    if isinstance(stored, Known) and stored.value.lower() not in {"auto", ""}:
        return stored
    if isinstance(stored, Known) and isinstance(engine.facts.dtype, Known):
        return engine.facts.dtype
    return Unknown("the dtype of the KV bytes is not shown")


def _setting(engine: Engine, value: str) -> str:
    flags = {"sglang": "--kv-cache-dtype {}", "vllm": "--kv-cache-dtype {}"}
    return flags[engine.engine].format(value) if engine.engine in flags else ""


RULE = Rule(
    id="KVF0024",
    slug="kv-dtype-differs",
    severity=Severity.HIGH,
    since="0.1.0",
    check=same("KV dtype", "kv_dtype", _read, _setting),
)
