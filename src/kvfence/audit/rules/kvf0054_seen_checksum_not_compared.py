"""A log shows that the two roles do not share their digests.

What it checks:
    "registered N metadata buffers but this prefill has M".

Why it matters:
    One role has the checksum's buffer and the other has not. What is compared then was not tested in any release.

Evidence:
    Prefill's log.

How to fix:
    The same `--disaggregation-enable-kv-checksum` on both roles.

References:
    sgl-project/sglang#39729.
"""

from kvfence.audit.rule import EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = ("kv_checksum_buffers_differ",)
_MEANING = "one role has the checksum's buffer and the other has not"
_FIX = "Set --disaggregation-enable-kv-checksum on both roles"

RULE = Rule(
    id="KVF0054",
    slug="seen-checksum-not-compared",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
