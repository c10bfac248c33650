"""The KV canary checks its own stamps and not the keys and values.

What it checks:
    `--kv-canary-real-data` where the canary is asked for: none (the default) hashes no KV byte, partial 16 a slot.

Why it matters:
    A transfer that brings the canary's stamps and wrong bytes passes unseen.

Evidence:
    `kv_canary_real_data` in the server's arguments or `/server_info`.

How to fix:
    `--kv-canary-real-data partial`, or all where the time allows.

References:
    sgl-project/sglang#26819; post-mortem (2026-10-26), recommendation 4.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.detectors import canary_is_asked
from kvfence.audit.judge import any_role, failed, not_applicable, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Look at how much the canary hashes."""
    asked, data = canary_is_asked(engine), engine.facts.kv_canary_real_data
    if isinstance(asked, Unknown):
        return undecided(f"whether the canary is asked for is not known: {asked.reason}", data)
    if not asked.value:
        return not_applicable("the canary is not asked for", asked)
    if isinstance(data, Unknown):
        return undecided(f"how much of the data it hashes is not known: {data.reason}", asked)
    if data.value.lower() in {"partial", "all"}:
        return passed(f"real data: {data.value}", data)
    flag = "--kv-canary-real-data partial"
    fix = Fix(f"Start with `{flag}`", flag, changes={"kv_canary_real_data": "partial"})
    return failed("the canary hashes its own stamps alone", asked, data, fixes=(fix,))


RULE = Rule(
    id="KVF0021",
    slug="canary-hashes-no-bytes",
    severity=Severity.LOW,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=any_role(judge),
)
