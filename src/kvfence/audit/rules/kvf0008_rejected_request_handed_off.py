"""A request that prefill has refused is handed to decode all the same.

What it checks:
    That SGLang in prefill/decode mode is 0.5.20 or later. The defect is reported from 0.5.10 on; no earlier release
    has the change either.

Why it matters:
    The engine keeps the refusal aside, replaces the prompt by one token and sends it on; both admission queues ask
    only whether the request is finished. Decode reserves pages for the whole prompt, gets one token's worth, and
    answers from what earlier requests left in the others. Every refusal takes this path, not the length alone.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 0.5.22 or later on both roles; until then make every pool larger than the context.

References:
    Post-mortem (2026-10-26), cause 2 and recommendation 2; sgl-project/sglang#30233, #35421, #30325, #34208, #36988.
"""

from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.sglang import REFUSAL_RETIRED_IN

_DEFECT = "a refused request is sent to decode as a one-token placeholder, and decode answers from pages nobody wrote"

RULE = Rule(
    id="KVF0008",
    slug="rejected-request-handed-off",
    severity=Severity.CRITICAL,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(fixed_in(REFUSAL_RETIRED_IN, _DEFECT)),
)
