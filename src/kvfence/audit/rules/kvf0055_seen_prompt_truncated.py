"""A log shows a prompt that an engine shortened by itself.

What it checks:
    "Request length is longer than the KV cache pool size or the max context length. Truncated."

Why it matters:
    Auto-truncation on a disaggregated prefill is unsafe.

Evidence:
    Prefill's log.

How to fix:
    Start prefill without `--allow-auto-truncate`.

References:
    sgl-project/sglang, `--allow-auto-truncate`; post-mortem (2026-10-26); KVF0007.
"""

from kvfence.audit.rule import EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = ("prompt_auto_truncated",)
_MEANING = "a prompt was shortened, which is unsafe on a disaggregated prefill"
_FIX = "Start prefill without --allow-auto-truncate"

RULE = Rule(
    id="KVF0055",
    slug="seen-prompt-truncated",
    severity=Severity.CRITICAL,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
