"""Blocks of an aborted load are freed while the load still writes them.

What it checks:
    That vLLM with a KV connector is later than 0.13, where the release of the blocks waits for the load's end.

Why it matters:
    The client goes, the blocks return to the pool, another request gets them, and the transfer that was not stopped
    writes the first request's keys and values into them: text across requests.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 0.14 or later on both roles, both the same release.

References:
    vllm-project/vllm#32255.
"""

from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity

_DEFECT = "blocks of an aborted load are freed under the load"

RULE = Rule(
    id="KVF0032",
    slug="aborted-load-frees-blocks",
    severity=Severity.CRITICAL,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=disaggregated(fixed_in("0.14.0", _DEFECT)),
)
