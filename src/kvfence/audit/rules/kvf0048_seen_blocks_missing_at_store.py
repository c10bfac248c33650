"""A log shows blocks that were gone when they were to be stored for re-use.

What it checks:
    "storeContextBlocks: Can not find sequence".

Why it matters:
    The sequence was removed while its blocks were still to be sent or kept: the symptom of a race in which blocks are
    evicted before an asynchronous send has read them.

Evidence:
    The log of the context server.

How to fix:
    Switch block re-use off on the context servers until the engine has the change.

References:
    NVIDIA/TensorRT-LLM#12540, #12542; triton-inference-server/tutorials#150.
"""

from kvfence.audit.rule import EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = ("storeContextBlocks_missing_sequence",)
_MEANING = "blocks were gone when they were to be stored: a race with an asynchronous send"
_FIX = "Switch block re-use off (enable_block_reuse: false) on context servers of a pair"

RULE = Rule(
    id="KVF0048",
    slug="seen-blocks-missing-at-store",
    severity=Severity.HIGH,
    engines=(EngineRange("tensorrt-llm"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
