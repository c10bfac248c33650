"""A log shows a refused prompt that was answered all the same.

What it checks:
    Prefill's log: "exceeds the maximum allowed length" followed by HTTP 200, or `prompt_tokens` 1 beside a long
    request.

Why it matters:
    It is the fingerprint of the incident: prefill says one token, decode says the whole prompt, the client gets 200.

Evidence:
    Prefill's request log and its error lines; the bodies of both roles' answers say the same.

How to fix:
    Stop long prompts now (lower the context), upgrade, and find out who was answered (`kvfence scope`).

References:
    sgl-project/sglang#30233, #35421; post-mortem (2026-10-26).
"""

from kvfence.audit.rule import Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = (
    "exceeds_then_200",
    "prompt_tokens_1_beside_long",
)
_MEANING = "a prompt that was refused got an answer: another request's text may be in it"
_FIX = "Lower the context below the smallest pool now, run SGLang 0.5.22 or later, look for the affected responses"

RULE = Rule(
    id="KVF0041",
    slug="seen-refused-prompt-answered",
    severity=Severity.CRITICAL,
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
