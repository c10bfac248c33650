"""Checks for what a running engine itself wrote: signatures in logs and counters.

Not seen means: not in what was given. Without a log or a counter nothing was looked at, and the answer is UNKNOWN.
"""

from collections.abc import Iterator

from kvfence.audit.deployment import Deployment, Engine
from kvfence.audit.rule import Check, Fix, Outcome
from kvfence.core.verdict import Verdict
from kvfence.evidence.facts import Event
from kvfence.evidence.sources import UNREAD

WATCHED_KINDS = ("log",)


def seen(meaning: str, *names: str, fix: str) -> Check:
    """Make a check that FAILs where one of these events was seen; ``meaning`` says what the event proves.

    A single node counts too: what an engine wrote of itself needs no role.
    """

    def check(deployment: Deployment) -> Iterator[Outcome]:
        for engine in deployment.engines:
            found = [event for event in engine.facts.events if event.name in names]
            yield _outcome(engine, found, meaning, fix)

    return check


def _outcome(engine: Engine, found: list[Event], meaning: str, fix: str) -> Outcome:
    if found:
        times = sum(event.count for event in found)
        evidence = tuple(dict.fromkeys(origin for event in found for origin in (event.first, event.last)))
        said = (
            f"seen {times} {'time' if times == 1 else 'times'} ({', '.join(event.name for event in found)}): {meaning}"
        )
        return Outcome(Verdict.FAIL, said, evidence, (Fix(fix),), subject=engine.name)
    if not engine.engine:
        return Outcome(Verdict.UNKNOWN, "no line of a known engine was found to look among", subject=engine.name)
    if any(UNREAD in problem for problem in engine.facts.problems):
        return Outcome(Verdict.UNKNOWN, "not seen in what could be read; the log goes on", subject=engine.name)
    if engine.has_kind(*WATCHED_KINDS):
        return Outcome(Verdict.PASS, "not seen in the log that was given", subject=engine.name)
    return Outcome(Verdict.UNKNOWN, "no log of this engine was given: nothing was looked at", subject=engine.name)
