"""Rules over a deployment: findings, what is ignored and until when, and the exit code.

A rule sees only the engines that it is about. Where that cannot be told of an engine, what FAILs on its facts still
does, and everything else is UNKNOWN, never nothing.
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from kvfence.audit.catalogue import Entry, catalogue
from kvfence.audit.deployment import Deployment, Engine
from kvfence.audit.rule import Fix, Outcome
from kvfence.core.verdict import Severity, Verdict, worst
from kvfence.evidence.facts import Origin, Unknown


class Finding(Struct, frozen=True):
    """What one rule says of one subject. ignored: the reason, where a person has accepted it."""

    rule: str
    slug: str
    title: str
    severity: Severity
    verdict: Verdict
    subject: str
    message: str
    evidence: tuple[Origin, ...] = ()
    fixes: tuple[Fix, ...] = ()
    ignored: str = ""


class Ignore(Struct, frozen=True):
    """An accepted finding: of which rule, why, until when, and of which subject (empty: all)."""

    rule: str
    reason: str
    until: datetime.date
    subject: str = ""


class Audit(Struct, frozen=True):
    """The findings of one run, in the order of the rules."""

    findings: tuple[Finding, ...]

    def verdict_of(self, rule: str) -> Verdict:
        """Join what a rule says of its subjects."""
        return worst(finding.verdict for finding in self.findings if finding.rule == rule)

    @property
    def counted(self) -> tuple[Finding, ...]:
        """Give the findings that nobody has accepted."""
        return tuple(finding for finding in self.findings if not finding.ignored)


def run(deployment: Deployment, entries: Sequence[Entry] | None = None) -> Audit:
    """Ask every rule."""
    asked = catalogue() if entries is None else entries
    return Audit(tuple(finding for entry in asked for finding in _findings(entry, deployment)))


def _findings(entry: Entry, deployment: Deployment) -> Iterator[Finding]:
    outcomes = list(_outcomes(entry, deployment))
    rule = entry.rule
    for outcome in outcomes or [Outcome(Verdict.NOT_APPLICABLE, "nothing here that the rule is about")]:
        yield Finding(
            rule.id,
            rule.slug,
            entry.title,
            outcome.severity or rule.severity,
            outcome.verdict,
            outcome.subject,
            outcome.message,
            outcome.evidence,
            outcome.fixes,
        )


def _outcomes(entry: Entry, deployment: Deployment) -> Iterator[Outcome]:
    if not deployment.engines:
        of_routers = [each for each in entry.rule.check(deployment) if each.verdict is not Verdict.NOT_APPLICABLE]
        yield from of_routers or [Outcome(Verdict.UNKNOWN, "no engine was recognised in the evidence")]
        return
    covered = [(engine, entry.rule.covers(engine)) for engine in deployment.engines]
    for engine, covers in covered:
        if isinstance(covers, Unknown):
            fails = _fails_by_facts(entry, deployment, engine)
            yield from fails or [Outcome(Verdict.UNKNOWN, covers.reason, subject=engine.name)]
    within = [engine for engine, covers in covered if covers is True]
    if within:
        yield from entry.rule.check(deployment.with_engines(within))


def _fails_by_facts(entry: Entry, deployment: Deployment, engine: Engine) -> list[Outcome]:
    """Give what FAILs of an engine whose release is not known; nothing where the engine itself is not known."""
    if not engine.engine:
        return []
    outcomes = entry.rule.check(deployment.with_engines([engine]))
    return [outcome for outcome in outcomes if outcome.verdict is Verdict.FAIL]


def with_ignores(audit: Audit, ignores: Iterable[Ignore], today: datetime.date) -> tuple[Audit, list[str]]:
    """Mark what is accepted; give the expired and the useless acceptances as notes, which mark nothing."""
    notes: list[str] = []
    live: list[Ignore] = []
    for ignore in ignores:
        if ignore.until < today:
            notes.append(f"ignore of {ignore.rule} has expired on {ignore.until}: {ignore.reason}")
        elif not any(_matches(ignore, finding) for finding in audit.findings):
            notes.append(f"ignore of {ignore.rule} matches no finding")
        else:
            live.append(ignore)
    return Audit(tuple(_marked(finding, live) for finding in audit.findings)), notes


def _matches(ignore: Ignore, finding: Finding) -> bool:
    same_rule = ignore.rule.lower() in {finding.rule.lower(), finding.slug}
    return same_rule and ignore.subject in {"", finding.subject} and finding.verdict in {Verdict.FAIL, Verdict.UNKNOWN}


def _marked(finding: Finding, ignores: list[Ignore]) -> Finding:
    for ignore in ignores:
        if _matches(ignore, finding):
            return structs.replace(finding, ignored=f"{ignore.reason} (until {ignore.until})")
    return finding


def exit_code(audit: Audit, fail_on: Severity = Severity.HIGH) -> int:
    """Give 1 where a rule at or above ``fail_on`` FAILs, else 3 where one is UNKNOWN, else 0."""
    fails = [finding for finding in audit.counted if finding.verdict is Verdict.FAIL]
    if any(finding.severity.rank >= fail_on.rank for finding in fails):
        return 1
    return 3 if any(finding.verdict is Verdict.UNKNOWN for finding in audit.counted) else 0
