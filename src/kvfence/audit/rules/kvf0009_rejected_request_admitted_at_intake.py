"""A refused request still enters the hand-off, and decode is left waiting for it.

What it checks:
    That SGLang in prefill/decode mode is 0.5.21 or later, which refuses at the door of both queues.

Why it matters:
    In 0.5.20 prefill retires the refused request, but only after it has been admitted, and tells decode nothing: decode
    holds the reserved pages, and the client waits, until the waiting time-out of 300 s.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 0.5.22 or later on both roles.

References:
    Post-mortem (2026-10-26), recommendation 2; sgl-project/sglang#38935, #36988.
"""

from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity

_DEFECT = "a refused request is admitted to the hand-off before it is retired"

RULE = Rule(
    id="KVF0009",
    slug="rejected-request-admitted-at-intake",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(fixed_in("0.5.21", _DEFECT)),
)
