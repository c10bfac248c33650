"""The KV canary does not survive a trip through the host cache.

What it checks:
    `--kv-canary` together with a hierarchical cache.

Why it matters:
    Pages that come back from the host tier come without the canary's side buffer: false alarms, or no check.

Evidence:
    The flag; the hierarchical cache in the server's arguments or the line of the tree cache.

How to fix:
    Leave one of the two away, and use the transfer checksum for the hand-off.

References:
    sgl-project/sglang#30098, #32476.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.detectors import canary_is_asked
from kvfence.audit.judge import any_role, failed, not_applicable, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(engine: Engine) -> Outcome:
    """Look at both settings."""
    asked, outer = canary_is_asked(engine), engine.facts.outer_cache
    if isinstance(asked, Unknown):
        return undecided(f"whether the canary is asked for is not known: {asked.reason}", outer)
    if not asked.value:
        return not_applicable("the canary is not asked for", asked)
    if isinstance(outer, Unknown):
        return undecided(f"whether there is a host cache is not known: {outer.reason}", asked)
    if outer.value.lower() in {"", "none"}:
        return passed("there is no host cache", outer)
    fix = Fix("Take `--kv-canary` away, or the host cache", "--kv-canary none", changes={"kv_canary_requested": "none"})
    return failed(f"the canary does not survive {outer.value}", asked, outer, fixes=(fix,))


RULE = Rule(
    id="KVF0022",
    slug="canary-lost-in-outer-cache",
    severity=Severity.MEDIUM,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=any_role(judge),
)
