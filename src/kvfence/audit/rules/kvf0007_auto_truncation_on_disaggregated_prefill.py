"""Prefill shortens long prompts by itself.

What it checks:
    `--allow-auto-truncate` on a prefill engine of a pair.

Why it matters:
    Auto-truncation on a disaggregated prefill is unsafe.

Evidence:
    `allow_auto_truncate` in the server's arguments, in its command line or in `/server_info`.

How to fix:
    Take the flag away. A prompt that does not fit is then refused.

References:
    sgl-project/sglang, `--allow-auto-truncate`; post-mortem (2026-10-26): decode must hold exactly what prefill sent.
"""

from kvfence.audit.deployment import Engine, Role
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Look at the flag."""
    truncates = engine.facts.auto_truncate
    if isinstance(truncates, Unknown):
        return undecided(f"whether prefill shortens prompts is not known: {truncates.reason}")
    if not truncates.value:
        return passed("prefill does not shorten prompts", truncates)
    fix = Fix(
        "Start prefill without `--allow-auto-truncate`",
        "remove --allow-auto-truncate",
        roles=("prefill", "unknown"),
        changes={"auto_truncate": False},
    )
    return failed("auto-truncation on a disaggregated prefill is unsafe", truncates, fixes=(fix,))


RULE = Rule(
    id="KVF0007",
    slug="auto-truncation-on-disaggregated-prefill",
    severity=Severity.CRITICAL,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(judge, Role.PREFILL),
)
