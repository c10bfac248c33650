"""Decode gives up a request and does not tell prefill to stop writing.

What it checks:
    That SGLang in prefill/decode mode is 0.5.12 or later.

Why it matters:
    Decode frees the pages of an aborted request while prefill goes on writing into them. The change is partial: its
    author names a window of up to 30 s; KVF0010 and KVF0012 are about the rest.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 0.5.22 or later on both roles.

References:
    sgl-project/sglang#27372, #24527, #32564.
"""

from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity

_DEFECT = "prefill is not told of an abort and goes on writing into pages that decode has freed"

RULE = Rule(
    id="KVF0011",
    slug="abort-not-told-to-prefill",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(fixed_in("0.5.12", _DEFECT)),
)
