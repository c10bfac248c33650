"""A log shows that decode read blocks after prefill had given them back.

What it checks:
    "Potentially invalid KV blocks ... were retrieved by a decode worker", and the counter of reads after expiry.

Why it matters:
    The blocks may have been another request's by then. Decode is not told; the answer goes out with HTTP 200.

Evidence:
    Prefill's log; `vllm:nixl_num_notifications_after_expiry_total`. The counter over-reports where pages were intact.

How to fix:
    A lease longer than the longest queue; find the affected responses by the request ids of those lines.

References:
    vllm-project/vllm#52234, #21570, #32208; aws-samples/aws-do-eks#84.
"""

from kvfence.audit.rule import EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = (
    "nixl_read_after_expiry",
    "stale_reference_decoded",
)
_MEANING = "decode read blocks whose lease had ended: each one may be a leaked response"
_FIX = "Raise kv_lease_duration above the longest time in the queue, and look the named requests up"

RULE = Rule(
    id="KVF0046",
    slug="seen-expired-blocks-read",
    severity=Severity.CRITICAL,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
