"""A log shows that transfers failed or timed out.

What it checks:
    "Decode transfer failed", "Sync batch data transfer timeout", NIXL transfer failures, failed loads.

Why it matters:
    A transfer that failed may have written a part, and may still write. What happens next rests on rules KVF0003 to
    KVF0014 and on the engine's failure policy.

Evidence:
    The logs of both roles; the counters of failed transfers.

How to fix:
    Find the cause in the network or in a dead peer; check KVF0003, KVF0010, KVF0012 and KVF0030.

References:
    sgl-project/sglang#36033, #38961; vllm-project/vllm#52234, #50754.
"""

from kvfence.audit.rule import Alert, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = (
    "transfer_failed",
    "sync_batch_timeout",
    "nixl_transfer_failure",
    "kv_load_failure",
    "expired_blocks_released",
)
_MEANING = "transfers failed; a late write of one of them may still land"
_FIX = "Find why transfers fail, and see that KVF0003, KVF0010, KVF0012 and KVF0030 hold"

RULE = Rule(
    id="KVF0045",
    slug="seen-transfer-failure",
    severity=Severity.MEDIUM,
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
    alerts=(
        Alert(
            "KvTransfersFail",
            "increase(sglang:num_transfer_failed_reqs_total[15m]) > 0",
            "KV transfers of an SGLang pair fail",
        ),
        Alert(
            "KvNixlTransfersFail",
            "increase(vllm:nixl_num_failed_transfers_total[15m]) > 0",
            "KV transfers of a vLLM pair fail",
        ),
    ),
)
