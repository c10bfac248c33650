"""A step that is still running writes into blocks that were given to a receive.

What it checks:
    That vLLM decoding from a KV connector is later than 0.23, where freeing waits for the step in flight.

Why it matters:
    With asynchronous scheduling a block is freed while the GPU step that uses it is still running; the block is given
    to a receive, and the old step writes over what arrived.

Evidence:
    The version in the start-up log, `/server_info`, `/version`, an image tag or an argument. A vendor's fork, a local
    label and a development build cannot be told from their version: UNKNOWN.

How to fix:
    Run 0.24 or later, or switch asynchronous scheduling off on decode.

References:
    vllm-project/vllm#45357, vllm-project/vllm-ascend#14055.
"""

from kvfence.audit.deployment import Role
from kvfence.audit.judge import disaggregated, fixed_in
from kvfence.audit.rule import EngineRange, Rule
from kvfence.core.verdict import Severity

_DEFECT = "an engine step that is still running can write into blocks that a receive was given"

RULE = Rule(
    id="KVF0033",
    slug="stale-step-writes-received-blocks",
    severity=Severity.HIGH,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=disaggregated(
        fixed_in("0.24.0", _DEFECT),
        Role.DECODE,
    ),
)
