"""What a record says of the endpoint: LEAK, SUSPECT, CLEAN WITHIN BOUND, or COULD NOT TELL.

A probe bounds a rate and never shows absence. Silence counts only as far as a leak would have been seen: a model that
cannot repeat a marker, a run that was stopped, a server that answered too little are COULD NOT TELL, never clean.
Not for: seeing (``detectors/``), counting (``power.py``), showing (``report/``).
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from kvfence.probe.chance import LEAK_CHANCE, SUSPECT_CHANCE
from kvfence.probe.detectors import ALL, Detector
from kvfence.probe.exchange import Cut, Record
from kvfence.probe.finding import Evidence, Finding, Redactor, Severity
from kvfence.probe.power import Power, power_of
from kvfence.probe.reproducer import reproduce

BOUND_MAX = 0.2
"""A wider bound says nothing: one answer in five could leak."""


class Verdict(StrEnum):
    """The four answers."""

    LEAK = "LEAK"
    SUSPECT = "SUSPECT"
    CLEAN = "CLEAN WITHIN BOUND"
    UNKNOWN = "COULD NOT TELL"


class Told(Struct, frozen=True, kw_only=True):
    """A finding as a report tells it. ``requests``: their numbers; ``evidence``: see ``finding.py``."""

    detector: str
    severity: Severity
    message: str
    p: float | None
    limit: float | None
    premise: str
    requests: tuple[int, ...]
    evidence: tuple[Evidence, ...]


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict and what it rests on.

    ``why``: for a reader, the first sentence says it all. ``bound``: where clean, the rate of leaking answers is below
    it at 95 %. ``false_alarms``: the chance that a sound run is called so, by the tests that rest on chance.
    ``unbounded``: what CLEAN WITHIN BOUND does not say. ``reproducer``: a shell script with curl, for a leak.
    """

    verdict: Verdict
    why: tuple[str, ...]
    findings: tuple[Told, ...]
    bound: float | None
    power: Power
    false_alarms: dict[str, float]
    unbounded: tuple[str, ...]
    reproducer: str | None = None


UNBOUNDED = (
    "faults that need a load, a length or a sequence of requests that this run did not make",
    "the other of the two routes, and answers of a kind that was not asked for: tools, pictures, several choices",
    "text of callers who are not the probe: it knows its own markers alone",
    "leaks that change an answer without a word of the other's text in it",
    "a leak in which this model repeats what it has read less often than it repeats a marker of its prompt",
    "faults that come in bursts: the bound takes the answers to be independent",
    "what the server will do at another time, with another release or other settings",
)


def judge(record: Record, keep_evidence: bool = False, detectors: Sequence[Detector] = ALL) -> Judgement:
    """Judge a record. ``keep_evidence``: write answers that hold foreign text into the evidence."""
    found = sorted((finding for each in detectors for finding in each.look(record)), key=_gravest)
    power = power_of(record)
    redactor = Redactor(keep_evidence)
    verdict, why = _decide(record, found, power)
    return Judgement(
        verdict=verdict,
        why=why,
        findings=tuple(_told(each, redactor) for each in found),
        bound=power.bound if verdict is Verdict.CLEAN else None,
        power=power,
        false_alarms={str(Verdict.LEAK): LEAK_CHANCE, str(Verdict.SUSPECT): SUSPECT_CHANCE},
        unbounded=UNBOUNDED,
        reproducer=reproduce(record, found),
    )


def _gravest(finding: Finding) -> tuple[int, float]:
    return finding.severity.rank, 0.0 if finding.p is None else finding.p


def _told(finding: Finding, redactor: Redactor) -> Told:
    return Told(
        detector=finding.detector,
        severity=finding.severity,
        message=finding.message,
        p=finding.p,
        limit=finding.limit,
        premise=finding.premise,
        requests=finding.numbers,
        evidence=redactor.evidence(finding.sights),
    )


def _decide(record: Record, found: Sequence[Finding], power: Power) -> tuple[Verdict, tuple[str, ...]]:
    """Give the verdict and its reasons; what was found holds, whatever ended the run."""
    for severity, verdict in ((Severity.LEAK, Verdict.LEAK), (Severity.SUSPECT, Verdict.SUSPECT)):
        reasons = tuple(finding.message for finding in found if finding.severity is severity)
        if reasons:
            return verdict, reasons
    doubts = tuple(_doubts(record, power))
    if doubts:
        return Verdict.UNKNOWN, doubts
    shown = "none did" if not power.near else f"{power.near} may have, by chance"
    return Verdict.CLEAN, (
        f"of {power.counted:,} answers that could have shown another tenant's text {shown}: "
        f"at 95 % fewer than {100 * (power.bound or 0.0):.3g} % of such answers leak",
    )


def _doubts(record: Record, power: Power) -> Iterable[str]:
    """Say why silence would mean nothing."""
    if record.cut is not None and record.cut is not Cut.BUDGET:
        yield f"the run ended before its plan ({record.cut}): {record.cut_why or 'no reason was noted'}"
    if not any(each.is_answer for each in record.exchanges):
        yield "no request was answered: everything was refused, or nothing came"
        return
    if len(record.planted) < 2:
        yield "there was one tenant: nobody else's text could come out"
    if not power.controls:
        yield "no positive control was answered, so nobody knows whether this model can repeat a marker"
    elif not power.seen:
        yield f"this model repeats a marker in none of {power.controls} controls: its silence says nothing"
    elif power.bound is None or power.bound > BOUND_MAX:
        bound = "no rate" if power.bound is None else f"only a rate of {power.bound:.0%}"
        yield (
            f"{power.counted} answers could have shown a leak, and {power.seen} of {power.controls} controls did, "
            f"which bounds {bound}: allow more requests, or ask a model that repeats better"
        )
