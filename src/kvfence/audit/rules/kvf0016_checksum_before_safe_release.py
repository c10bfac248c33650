"""The transfer checksum is on in a release where it can hang the workers it should protect.

What it checks:
    That SGLang with the checksum asked for is 0.5.23 or later; the flag came in 0.5.21.

Why it matters:
    In 0.5.21 and 0.5.22 each rank decides by itself: on a real corruption one rank drops the request and the others
    wait for it. Layouts that differ give false alarms or are passed over in silence.

Evidence:
    The flag and the version.

How to fix:
    Run 0.5.23 or later where the checksum is on.

References:
    sgl-project/sglang#39729, #39500.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, fixed_in, not_applicable, undecided
from kvfence.audit.rule import EngineRange, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown

_BY_RELEASE = fixed_in("0.5.23", "the checksum decides per rank, and a real corruption can hang tensor parallel ranks")


def judge(engine: Engine) -> Outcome:
    """Judge the release where the checksum is asked for."""
    asked = engine.facts.kv_checksum_requested
    if isinstance(asked, Unknown):
        return undecided(f"whether the checksum is asked for is not known: {asked.reason}")
    if not asked.value:
        return not_applicable("the checksum is not asked for", asked)
    return _BY_RELEASE(engine)


RULE = Rule(
    id="KVF0016",
    slug="checksum-before-safe-release",
    severity=Severity.MEDIUM,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=disaggregated(judge),
)
