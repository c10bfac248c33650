"""Deferred release gives pages back without a full drain in common cases.

What it checks:
    That SGLang in prefill/decode mode is 0.5.22 or later, which keeps a set of acknowledgements for each request and
    numbers their generations.

Why it matters:
    With one acknowledgement slot for a request that several prefill ranks write, the first one to answer stands for
    all; targets are dropped before the drain ends; some failures release at once. Pages go back under a writer.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 0.5.22 or later on both roles.

References:
    sgl-project/sglang#38961, #35049; post-mortem (2026-10-26), recommendation 2.
"""

from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity

_DEFECT = "drain acknowledgements can be lost, so that pages are released while a prefill rank still writes"

RULE = Rule(
    id="KVF0010",
    slug="drain-acknowledgement-lost",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(fixed_in("0.5.22", _DEFECT)),
)
