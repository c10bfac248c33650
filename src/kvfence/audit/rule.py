"""What a rule is: an id that is never used again, where it applies, and a check that sees facts only.

A check gives outcomes; the runner makes findings of them. How a check is built from a judgement of one engine or one
pair: ``judge.py``.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, structs

from kvfence.audit.deployment import Deployment, Engine
from kvfence.core.verdict import Severity, Verdict
from kvfence.evidence.facts import Known, Origin, SourceFacts, Unknown
from kvfence.evidence.versions import within

Value = bool | int | float | str


class Fix(Struct, frozen=True):
    """What to do, so exactly that it can be applied to the facts.

    setting: the flag, variable or release, with its value, for this engine and version; empty where there is none.
    roles: the roles whose engines take it; empty: all.
    changes: the facts as they read afterwards.
    forgets: facts that must be read anew, because the change moves them.
    """

    text: str
    setting: str = ""
    roles: tuple[str, ...] = ()
    changes: Mapping[str, Value] = {}
    forgets: tuple[str, ...] = ()


class Outcome(Struct, frozen=True):
    """What a check says of one subject. severity: where this outcome matters less than its rule."""

    verdict: Verdict
    message: str
    evidence: tuple[Origin, ...] = ()
    fixes: tuple[Fix, ...] = ()
    severity: Severity | None = None
    subject: str = ""


Check = Callable[[Deployment], Iterable[Outcome]]


class EngineRange(Struct, frozen=True):
    """An engine and the releases a rule is about, such as ``>=0.24,<0.31``; empty: all of them."""

    engine: str
    versions: str = ""


class Alert(Struct, frozen=True):
    """The same rule for a metrics server: a PromQL expression that gives a series where the rule FAILs."""

    name: str
    expression: str
    summary: str
    for_: str = "5m"


class Rule(Struct, frozen=True, kw_only=True):
    """One rule. engines: empty where it is about every engine. since: the kvfence release that brought it."""

    id: str
    slug: str
    severity: Severity
    engines: tuple[EngineRange, ...] = ()
    since: str
    check: Check
    alerts: tuple[Alert, ...] = ()

    def covers(self, engine: Engine) -> bool | Unknown:
        """Tell whether the rule is about this engine, or why that cannot be told."""
        if not self.engines:
            return True
        if not engine.engine:
            return Unknown("which engine this is, is not known")
        ranges = [one.versions for one in self.engines if one.engine == engine.engine]
        if not ranges:
            return False
        if "" in ranges:
            return True
        release = engine.release
        if isinstance(release, Unknown):
            return release
        return any(within(release.value, versions) for versions in ranges)


def apply_fix(sources: Iterable[SourceFacts], fix: Fix) -> list[SourceFacts]:
    """Give the facts as the sources would read once the fix is made."""
    return [_fixed(source, fix) for source in sources]


def _fixed(source: SourceFacts, fix: Fix) -> SourceFacts:
    role = source.role.value if isinstance(source.role, Known) else "unknown"
    if fix.roles and role not in fix.roles:
        return source
    origin = Origin(source.name, quote=fix.setting, key="fix")
    changed: dict[str, object] = {field: Unknown("to be read anew after the fix") for field in fix.forgets}
    changed |= {field: Known(value, origin) for field, value in fix.changes.items()}
    return structs.replace(source, **changed)
