"""A failed receive is computed anew, and nobody is told.

What it checks:
    `kv_load_failure_policy` of a vLLM engine with a KV connector: `fail` gives an error, `recompute` does not. The
    default was recompute in old releases and is fail from 0.18.1 at the latest.

Why it matters:
    Recomputing hides that transfers fail, and with more than one group of KV caches the engine raises instead.

Evidence:
    `kv_transfer_config` in the log, the command or a manifest; the version's default.

How to fix:
    `"kv_load_failure_policy": "fail"` in `--kv-transfer-config` of both roles.

References:
    vllm-project/vllm#52234, #52232.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown

_SETTING = '--kv-transfer-config \'{"kv_load_failure_policy": "fail", ...}\''


def judge(engine: Engine) -> Outcome:
    """Look at the policy."""
    policy = engine.facts.failure_policy
    if isinstance(policy, Unknown):
        return undecided(f"the policy for failed loads is not known: {policy.reason}", engine.facts.version)
    if policy.value.lower() == "fail":
        return passed("a failed load fails the request", policy)
    fix = Fix(f"Set `{_SETTING}` on both roles", _SETTING, changes={"failure_policy": "fail"})
    return failed(f"policy {policy.value}: a failed load shows nowhere", policy, fixes=(fix,))


RULE = Rule(
    id="KVF0030",
    slug="load-failure-recomputed-in-silence",
    severity=Severity.MEDIUM,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=disaggregated(judge),
)
