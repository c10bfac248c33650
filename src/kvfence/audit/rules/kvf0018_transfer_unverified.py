"""Nothing verifies that decode holds what prefill sent.

What it checks:
    That the transfer checksum is asked for; it exists from SGLang 0.5.21 on and is off by default.

Why it matters:
    No release up to 0.5.23 compares the number of tokens that prefill sent with the number that decode reserved. The
    checksum is the one built-in check of a hand-off's bytes. It covers the hand-off, not later reads.

Evidence:
    `disaggregation_enable_kv_checksum`, the version.

How to fix:
    `--disaggregation-enable-kv-checksum` on both roles, with 0.5.23 or later.

References:
    Post-mortem (2026-10-26), recommendation 4; sgl-project/sglang#39500, #38704.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Unknown
from kvfence.evidence.versions import at_least

_FLAG = "--disaggregation-enable-kv-checksum"


def judge(engine: Engine) -> Outcome:
    """Look at the flag, and at whether the release has it."""
    release, asked = engine.release, engine.facts.kv_checksum_requested
    if isinstance(release, Known) and at_least(release.value, "0.5.21") is False:
        fix = Fix(
            f"Run SGLang 0.5.23 or later with `{_FLAG}` on both roles",
            _FLAG,
            changes={"version": "0.5.23", "kv_checksum_requested": True},
        )
        return failed(f"SGLang {release.value} has no check of a transfer's bytes", release, fixes=(fix,))
    if isinstance(asked, Unknown):
        return undecided(f"whether the checksum is asked for is not known: {asked.reason}", release)
    if asked.value:
        return passed("the checksum is asked for", asked)
    fix = Fix(f"Start both roles with `{_FLAG}` (0.5.23 or later)", _FLAG, changes={"kv_checksum_requested": True})
    return failed("the checksum is not asked for", asked, fixes=(fix,))


RULE = Rule(
    id="KVF0018",
    slug="transfer-unverified",
    severity=Severity.MEDIUM,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(judge),
)
