"""A detector of the engine has found wrong KV bytes.

What it checks:
    "KV checksum mismatch", "Context corruption detected", canary violations.

Why it matters:
    A detector that speaks has seen bytes of another request, or torn ones. It stops at most the request it saw.

Evidence:
    The logs of both roles.

How to fix:
    Treat it as an incident: keep the logs, take the model off, find the affected responses, then the cause.

References:
    sgl-project/sglang#39500, #22716, #26819; post-mortem (2026-10-26), recommendation 4.
"""

from kvfence.audit.rule import EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = (
    "kv_checksum_mismatch",
    "context_corruption",
    "kv_canary_violation",
)
_MEANING = "the engine found KV bytes that are not the request's"
_FIX = "Keep the logs, take the deployment out of service, and look for affected responses before anything else"

RULE = Rule(
    id="KVF0043",
    slug="seen-corruption",
    severity=Severity.CRITICAL,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
