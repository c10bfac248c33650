"""A detector is asked for, and nothing shows that it works.

What it checks:
    That a checksum or canary that was asked for has left positive evidence: for the canary the line that its buffers
    are attached to a pool. A request for a detector is not evidence of one.

Why it matters:
    Both detectors can be on and check nothing: a missing digest counts as verified, a pool class without support has
    no canary, differing layouts are skipped.

Evidence:
    The logs of both roles.

How to fix:
    Read the logs of a fresh start with the flag on. Where the line does not come, the architecture has no support.

References:
    Post-mortem (2026-10-26), recommendation 4; sgl-project/sglang#39729, #30098.
"""

from collections.abc import Iterator

from msgspec import structs

from kvfence.audit.deployment import Deployment, Engine
from kvfence.audit.detectors import canary_is_asked
from kvfence.audit.judge import any_role, failed, not_applicable, not_single, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import FlagFact, Known, Unknown


def check(deployment: Deployment) -> Iterator[Outcome]:
    """Judge each detector of each engine."""
    for noun, judge in (("checksum", not_single(_checksum)), ("canary", any_role(_canary))):
        for outcome in judge(deployment):
            yield structs.replace(outcome, message=f"{noun}: {outcome.message}")


def _checksum(engine: Engine) -> Outcome:
    return _judge(engine.facts.kv_checksum_requested, engine.facts.kv_checksum_active, "kv_checksum_active")


def _canary(engine: Engine) -> Outcome:
    return _judge(canary_is_asked(engine), engine.facts.kv_canary_active, "kv_canary_active")


def _judge(asked: FlagFact, active: FlagFact, field: str) -> Outcome:
    if isinstance(active, Known) and active.value:
        return passed("seen active", active)
    if isinstance(asked, Unknown):
        return undecided(f"whether it is asked for is not known: {asked.reason}", active)
    if not asked.value:
        return not_applicable("not asked for", asked)
    if isinstance(active, Unknown):
        return undecided(f"asked for, and nothing shows that it works: {active.reason}", asked)
    fix = Fix(
        "Make both roles' layout equal, or use a pool class that has support, and read the log again",
        changes={field: True},
    )
    return failed("asked for, and the engine says that it does not check", asked, active, fixes=(fix,))


RULE = Rule(
    id="KVF0019",
    slug="detector-never-seen-active",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=check,
)
