"""The KV canary is asked for with a pool class that has none.

What it checks:
    `--kv-canary` against the class of the KV pool. Supported are, by exact class, MHA, MHA with FP4, SWA and
    DeepSeek-V4 pools; there is no canary for MLA and sparse-attention (DSA) pools up to 0.5.23.

Why it matters:
    The model of the incident has a sparse-attention pool. The canary cannot be its detector.

Evidence:
    The class of the pool in the start-up log; the flag.

How to fix:
    Use the transfer checksum instead (0.5.23 or later), and take the flag away.

References:
    Post-mortem (2026-10-26), recommendation 4: not every architecture; sgl-project/sglang#26819.
"""

import re

from kvfence.audit.deployment import Engine
from kvfence.audit.detectors import canary_is_asked
from kvfence.audit.judge import any_role, failed, not_applicable, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown

_WITHOUT = re.compile(r"MLA|DSA|NSA", re.IGNORECASE)
_WITH = re.compile(r"MHA|SWA|DeepSeekV4", re.IGNORECASE)


def judge(engine: Engine) -> Outcome:
    """Look the pool's class up."""
    asked, pool = canary_is_asked(engine), engine.facts.pool_class
    if isinstance(asked, Unknown):
        return undecided(f"whether the canary is asked for is not known: {asked.reason}", pool)
    if not asked.value:
        return not_applicable("the canary is not asked for", asked)
    if isinstance(pool, Unknown):
        return undecided(f"the class of the pool is not known: {pool.reason}", asked)
    if _WITHOUT.search(pool.value):
        fix = Fix(
            "Take `--kv-canary` away and use `--disaggregation-enable-kv-checksum` (0.5.23 or later)",
            "--kv-canary none",
            changes={"kv_canary_requested": "none"},
        )
        return failed(f"{pool.value} has no canary", asked, pool, fixes=(fix,))
    if _WITH.search(pool.value):
        return passed(f"{pool.value} has a canary", asked, pool)
    return undecided(f"whether {pool.value} has a canary is not known", asked, pool)


RULE = Rule(
    id="KVF0020",
    slug="canary-unsupported-pool-class",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=any_role(judge),
)
