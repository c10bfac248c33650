"""The report as one JSON document, which every other form is drawn from.

No prompt and no answer stands in it, unless evidence is kept; no key ever does. Every text has its hidden characters
made visible: what a server says must not reach a terminal raw.
"""

from typing import Any

from msgspec import Struct, convert, to_builtins

from kvfence import __version__
from kvfence.evidence.visible import plain
from kvfence.probe.exchange import Calibration, Exchange, Record
from kvfence.probe.finding import Severity
from kvfence.probe.power import PhasePower, Power
from kvfence.probe.verdict import Judgement, Told, Verdict

SCHEMA = "kvfence-probe/1"

EVIDENCE_CHARS_MAX = 20_000
"""Of a kept answer so much stands in a document."""


class Line(Struct, frozen=True, omit_defaults=True):
    """One request: what was asked and what came, without a text.

    ``found``: the gravest that any finding which rests on it says.
    Units: tokens of the prompt as planned and as counted; seconds on the run's clock.
    """

    number: int
    tenant: str
    phase: str
    role: str
    tokens: int | None
    counted: int | None
    max_tokens: int
    sent_s: float
    first_s: float | None
    ended_s: float
    status: int | None
    trouble: str | None
    length: int
    found: Severity | None = None


class Pair(Struct, frozen=True):
    """One cell of the matrix: in how many answers to ``asker`` text of ``owner`` was found."""

    asker: str
    owner: str
    answers: int


class Asked(Struct, frozen=True):
    """Where it was asked, and as whom; ``keys``: how many different ones."""

    url: str
    model: str
    path: str
    keys: int


class Document(Struct, frozen=True):
    """One run. ``requests``: how many; ``lines``: each of them; ``echo``: the positive control, so many of so many.

    ``shortened``: how many answers were too long to be kept whole.
    """

    schema: str
    kvfence: str
    verdict: Verdict
    why: tuple[str, ...]
    requests: int
    findings: tuple[Told, ...]
    bound: float | None
    power: Power
    false_alarms: dict[str, float]
    unbounded: tuple[str, ...]
    target: Asked
    calibration: Calibration
    phases: tuple[PhasePower, ...]
    tenants: tuple[str, ...]
    matrix: tuple[Pair, ...]
    lines: tuple[Line, ...]
    cut: str | None
    cut_why: str
    seed: int
    wall_s: float
    shortened: int = 0


def make_document(record: Record, judgement: Judgement) -> Document:
    """Put a report together."""
    made = Document(
        schema=SCHEMA,
        kvfence=__version__,
        verdict=judgement.verdict,
        why=judgement.why,
        requests=len(record.exchanges),
        findings=judgement.findings,
        bound=judgement.bound,
        power=judgement.power,
        false_alarms=judgement.false_alarms,
        unbounded=judgement.unbounded,
        target=_asked(record),
        calibration=record.calibration,
        phases=tuple(each for each in judgement.power.phases if each.requests),
        tenants=tuple(record.planted),
        matrix=_matrix(judgement.findings),
        lines=_lines(record, judgement.findings),
        cut=record.cut,
        cut_why=record.cut_why,
        seed=record.seed,
        wall_s=round(record.wall_s, 3),
        shortened=sum(each.left_out > 0 for each in record.exchanges),
    )
    return convert(_visible(to_builtins(made)), Document)


def _asked(record: Record) -> Asked:
    target = record.target
    return Asked(target.url, target.model, target.path, len(set(target.keys.values())))


def _matrix(findings: tuple[Told, ...]) -> tuple[Pair, ...]:
    found: dict[tuple[str, str], set[int]] = {}
    for finding in findings:
        for each in finding.evidence if finding.severity is not Severity.NOTE else ():
            if each.of:
                found.setdefault((each.tenant, each.of), set()).add(each.request)
    return tuple(Pair(asker, owner, len(answers)) for (asker, owner), answers in sorted(found.items()))


def _lines(record: Record, findings: tuple[Told, ...]) -> tuple[Line, ...]:
    worst: dict[int, Severity] = {}
    for finding in findings:
        for number in finding.requests:
            worst[number] = min(worst.get(number, Severity.NOTE), finding.severity, key=lambda each: each.rank)
    return tuple(_line(each, worst.get(each.ask.number)) for each in record.exchanges)


def _line(exchange: Exchange, found: Severity | None) -> Line:
    ask = exchange.ask
    return Line(
        number=ask.number,
        tenant=ask.tenant,
        phase=str(ask.phase),
        role=ask.role,
        tokens=ask.num_tokens,
        counted=exchange.prompt_tokens,
        max_tokens=ask.max_tokens,
        sent_s=round(exchange.sent_s, 4),
        first_s=None if exchange.first_s is None else round(exchange.first_s, 4),
        ended_s=round(exchange.ended_s, 4),
        status=exchange.status,
        trouble=exchange.trouble,
        length=len(exchange.text) + len(exchange.aside) + exchange.left_out,
        found=found,
    )


def _visible(value: Any) -> Any:
    """Make every text visible, in names of fields, too; what is too long is cut."""
    if isinstance(value, str):
        return plain(value, EVIDENCE_CHARS_MAX)
    if isinstance(value, dict):
        return {_visible(key): _visible(each) for key, each in value.items()}
    return [_visible(each) for each in value] if isinstance(value, list | tuple) else value
