"""The index of the host cache is read before the load has finished.

What it checks:
    SGLang with a hierarchical cache up to 0.5.10.

Why it matters:
    A few answers in ten thousand are garbled: the indexer's rows of a page are read while they are being loaded.

Evidence:
    The hierarchical cache in the arguments or the log; the version.

How to fix:
    Run 0.5.22 or later, or leave the hierarchical cache away.

References:
    sgl-project/sglang#22811, #12073.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import any_role, fixed_in, not_applicable, undecided
from kvfence.audit.rule import EngineRange, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown

_BY_RELEASE = fixed_in("0.5.11", "pages of the host cache can be read before they are loaded")


def judge(engine: Engine) -> Outcome:
    """Judge the release where there is such a cache."""
    outer = engine.facts.outer_cache
    if isinstance(outer, Unknown):
        return undecided(f"whether there is a host cache is not known: {outer.reason}", engine.facts.version)
    if outer.value.lower() in {"", "none", "off"}:
        return not_applicable("there is no host cache", outer)
    return _BY_RELEASE(engine)


RULE = Rule(
    id="KVF0049",
    slug="host-cache-read-before-load",
    severity=Severity.MEDIUM,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=any_role(judge),
)
