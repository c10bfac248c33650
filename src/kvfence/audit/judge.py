"""How a rule's check is built: outcomes in one line each, and checks made of a judgement of one engine or of a pair."""

from collections.abc import Callable, Iterable, Iterator

from msgspec import structs
from packaging.version import Version

from kvfence.audit.deployment import Deployment, Engine, Role
from kvfence.audit.rule import Check, Fix, Outcome
from kvfence.core.verdict import Severity, Verdict
from kvfence.evidence.facts import Known, Origin, Unknown
from kvfence.evidence.versions import at_least

AnyFact = Known[int] | Known[float] | Known[str] | Known[bool] | Known[Version] | Unknown
Judge = Callable[[Engine], Outcome]
BOTH = (Role.PREFILL, Role.DECODE)


def passed(message: str, *facts: AnyFact) -> Outcome:
    """Say that the bad pattern is not there, and by which facts."""
    return Outcome(Verdict.PASS, message, _origins(facts))


def failed(message: str, *facts: AnyFact, fixes: tuple[Fix, ...], severity: Severity | None = None) -> Outcome:
    """Say that the bad pattern is there, by which facts, and what mends it."""
    return Outcome(Verdict.FAIL, message, _origins(facts), fixes, severity)


def undecided(message: str, *facts: AnyFact, fixes: tuple[Fix, ...] = ()) -> Outcome:
    """Say that the evidence does not decide, and what is missing."""
    return Outcome(Verdict.UNKNOWN, message, _origins(facts), fixes)


def not_applicable(message: str, *facts: AnyFact) -> Outcome:
    """Say why the rule is about something else."""
    return Outcome(Verdict.NOT_APPLICABLE, message, _origins(facts))


def _origins(facts: Iterable[AnyFact]) -> tuple[Origin, ...]:
    return tuple(dict.fromkeys(fact.origin for fact in facts if isinstance(fact, Known)))


SINGLE_IS_SAFE = "a single node: the engine's own path refuses and releases rightly there"


def disaggregated(judge: Judge, *roles: Role) -> Check:
    """Make a check of each engine of a pair, prefill and decode where no role is named.

    A single node is NOT_APPLICABLE. Where the role is not known a FAIL becomes UNKNOWN: it may be a single node.
    """
    wanted = roles or BOTH

    def check(deployment: Deployment) -> Iterator[Outcome]:
        for engine in deployment.engines:
            if engine.role is Role.SINGLE:
                yield _about(engine, not_applicable(SINGLE_IS_SAFE, engine.facts.role))
            elif engine.role in wanted:
                yield _about(engine, judge(engine))
            elif engine.role is Role.UNKNOWN:
                yield _about(engine, _softened(judge(engine)))

    return check


def not_single(judge: Judge) -> Check:
    """Make a check of each engine but single nodes, for evidence that only one half of a pair can give."""

    def check(deployment: Deployment) -> Iterator[Outcome]:
        for engine in deployment.engines:
            if engine.role is Role.SINGLE:
                yield _about(engine, not_applicable(SINGLE_IS_SAFE, engine.facts.role))
            else:
                yield _about(engine, judge(engine))

    return check


def any_role(judge: Judge) -> Check:
    """Make a check of each engine, a single node too."""

    def check(deployment: Deployment) -> Iterator[Outcome]:
        for engine in deployment.engines:
            yield _about(engine, judge(engine))

    return check


def _about(engine: Engine, outcome: Outcome) -> Outcome:
    return structs.replace(outcome, subject=engine.name)


def _softened(outcome: Outcome) -> Outcome:
    if outcome.verdict is not Verdict.FAIL:
        return outcome
    asked = "Its role is not known (say FILE=prefill, FILE=decode or FILE=single): if it is half of a pair, "
    return structs.replace(outcome, verdict=Verdict.UNKNOWN, message=asked + _lowered(outcome.message))


def _lowered(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def fixed_in(first: str, defect: str) -> Judge:
    """Make a judgement by release: FAIL before ``first``, which has the change; a fork or build cannot be told."""

    def judge(engine: Engine) -> Outcome:
        release = engine.release
        if isinstance(release, Unknown):
            return undecided(release.reason, engine.facts.version)
        is_in = at_least(release.value, first)
        if isinstance(is_in, Unknown):
            return undecided(is_in.reason, release)
        if is_in:
            return passed(f"{engine.engine} {release.value} has the change, which came in {first}", release)
        return failed(f"{engine.engine} {release.value}: {defect}", release, fixes=(upgrade(engine, first),))

    return judge


def upgrade(engine: Engine, first: str) -> Fix:
    """Give the fix that is a newer release."""
    text = f"Run {engine.engine} {first} or later on every role; all roles the same release"
    return Fix(text, f"{engine.engine}=={first}", changes={"version": first}, forgets=("is_fork",))


def pairs(deployment: Deployment) -> Iterator[tuple[Engine, Engine]]:
    """Give each prefill engine with each decode engine."""
    for prefill in deployment.of_role(Role.PREFILL):
        for decode in deployment.of_role(Role.DECODE):
            yield prefill, decode


def each_pair(judge: Callable[[Engine, Engine], Outcome]) -> Check:
    """Make a check of each pair; where one half was not given, or no role is known, the answer is UNKNOWN."""

    def check(deployment: Deployment) -> Iterator[Outcome]:
        found = list(pairs(deployment))
        for prefill, decode in found:
            outcome = judge(prefill, decode)
            yield structs.replace(outcome, subject=f"{prefill.name} / {decode.name}")
        if not found:
            yield _no_pair(deployment)

    return check


def _no_pair(deployment: Deployment) -> Outcome:
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if deployment.of_role(role):
            return undecided(f"no source of a {other} engine was given to compare with")
    if deployment.of_role(Role.UNKNOWN):
        return undecided("no engine's role is known: say FILE=prefill and FILE=decode, or FILE=single")
    return not_applicable(SINGLE_IS_SAFE)
