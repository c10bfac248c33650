"""A client's disconnect during a transfer takes the transport away under it.

What it checks:
    That Dynamo is later than 1.0, where a cancel before the first token is held back.

Why it matters:
    The cancel is passed across nodes while the transfer runs; one prefill and one decode worker then hang for good, or
    a late write lands after the pages were given back.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 1.1 or later.

References:
    ai-dynamo/dynamo#7489; post-mortem (2026-10-26), recommendation 5.
"""

from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity

_DEFECT = "a cancel before the first token tears the transport down under a running transfer"

RULE = Rule(
    id="KVF0052",
    slug="cancel-tears-down-transport",
    severity=Severity.HIGH,
    engines=(EngineRange("dynamo"),),
    since="0.1.0",
    check=disaggregated(fixed_in("1.1.0", _DEFECT)),
)
