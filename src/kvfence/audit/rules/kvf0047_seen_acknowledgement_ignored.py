"""A log shows drain acknowledgements that are ignored.

What it checks:
    "Generation-less ABORT_ACK received; ignoring it".

Why it matters:
    The peer runs an older release. Every abort then waits for the release time-out, and pages go back without proof.

Evidence:
    The decode log.

How to fix:
    The same release, 0.5.22 or later, on every role.

References:
    sgl-project/sglang#38961.
"""

from kvfence.audit.rule import EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = ("generationless_ack",)
_MEANING = "acknowledgements of an older peer are ignored, so that releases end by time-out"
_FIX = "Run the same SGLang release, 0.5.22 or later, on every role"

RULE = Rule(
    id="KVF0047",
    slug="seen-acknowledgement-ignored",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
