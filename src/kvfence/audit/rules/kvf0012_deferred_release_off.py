"""Pages of an aborted request are given back before the writer has been heard of.

What it checks:
    Deferred KV release on each role of an SGLang pair: what the environment says, else the release's default (absent
    before 0.5.19, off in 0.5.19 and 0.5.20, on from 0.5.21).

Why it matters:
    Decode aborts in mid-transfer and frees the pages; a late write of prefill lands in pages that are somebody else's.

Evidence:
    SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE in a manifest, a command or a log; the version. What a role does
    not show stays UNKNOWN: a value on one role says nothing of the other.

How to fix:
    Run 0.5.22 or later and leave the variable unset, or set it to true, on both roles.

References:
    Post-mortem (2026-10-26), recommendation 3; sgl-project/sglang#35049, #24526, #24527, #41023.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided, upgrade
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, Unknown
from kvfence.evidence.versions import within

VARIABLE = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"


def judge(engine: Engine) -> Outcome:
    """Look at the variable first, then at what the release does without it."""
    release, deferred = engine.release, engine.facts.deferred_release
    if isinstance(release, Known) and within(release.value, "<0.5.19"):
        fix = upgrade(engine, "0.5.22")
        return failed(
            f"SGLang {release.value} cannot defer the release of pages", release, deferred, fixes=(_with_on(fix),)
        )
    if isinstance(deferred, Unknown):
        return undecided(f"whether release is deferred is not known: {deferred.reason}", release)
    whose = f" (the default of {deferred.default_of})" if deferred.default_of else ""
    if deferred.value:
        return passed(f"release is deferred until prefill has drained{whose}", deferred)
    return failed(f"release is not deferred{whose}: pages go back under a writer", deferred, fixes=(_with_on(None),))


def _with_on(upgraded: Fix | None) -> Fix:
    setting = f"{VARIABLE}=true"
    changes = {"deferred_release": True} | ({} if upgraded is None else {"version": "0.5.22"})
    text = "Run SGLang 0.5.22 or later on both roles, where it is on" if upgraded else f"Set `{setting}` on both roles"
    return Fix(text, upgraded.setting if upgraded else setting, changes=changes)


RULE = Rule(
    id="KVF0012",
    slug="deferred-release-off",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(judge),
)
