"""Prefill and decode order the bytes of a page differently.

What it checks:
    The KV layout (such as NHD or HND) of both halves of a pair, where it is shown.

Why it matters:
    The same bytes are read as other heads and tokens: both sides are sure, and the answer is wrong.

Evidence:
    The layout in the start-up log or the environment.

How to fix:
    The same layout on both roles.

References:
    NVIDIA/TensorRT-LLM#6507; sgl-project/sglang#39729.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.parity import same
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import TextFact


def _read(engine: Engine) -> TextFact:
    return engine.facts.layout


def _setting(engine: Engine, value: str) -> str:
    flags = {"vllm": "VLLM_KV_CACHE_LAYOUT={}"}
    return flags[engine.engine].format(value) if engine.engine in flags else ""


RULE = Rule(
    id="KVF0026",
    slug="layout-differs",
    severity=Severity.HIGH,
    engines=(EngineRange("vllm"), EngineRange("tensorrt-llm")),
    since="0.1.0",
    check=same("KV layout", "layout", _read, _setting),
)
