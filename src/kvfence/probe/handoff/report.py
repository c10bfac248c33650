"""A run as one JSON document, as rows for a screen, and as a verdict. No prompt, answer, token or key stands in it.

Not for: drawing (``cli/render.py``).
"""

from collections.abc import Iterator

from msgspec import Struct

from kvfence import __version__
from kvfence.evidence.visible import plain
from kvfence.probe.finding import Redactor
from kvfence.probe.handoff.bench import Case
from kvfence.probe.handoff.pair import Role
from kvfence.probe.handoff.run import Found, Record
from kvfence.probe.handoff.trial import Answer, Seen, gravest

SCHEMA = "kvfence-probe-handoff/1"
ROWS = ("case", "answer", "status", "ms", "why")
CATALOGUE = ("case", "what the probe does", "what an unguarded pair may do")


class Line(Struct, frozen=True, kw_only=True):
    """One try. ``status``, ``ms``: of the answer that it rests on; ``digest``: keyed, of its text, as in ``probe run``.

    ``chance``: of a leak: that the marker stands in such a text by accident.
    """

    answer: Answer
    why: str
    status: int | None = None
    ms: float | None = None
    length: int = 0
    digest: str = ""
    chance: float | None = None
    text: str | None = None


class CaseLine(Struct, frozen=True, kw_only=True):
    """One case, with its tries in order."""

    case: str
    does: str
    answer: Answer
    tries: tuple[Line, ...]


class Document(Struct, frozen=True, kw_only=True):
    """One run. ``verdict``: the gravest answer, COULD NOT TELL where nothing was tried; ``why``: what cut it short."""

    schema: str
    kvfence: str
    verdict: Answer
    why: str
    engine: str
    prefill: str
    decode: str
    model: str
    block_size: int
    cases: tuple[CaseLine, ...]
    requests: int
    tokens: int
    seed: int
    wall_s: float


def verdict_of(record: Record) -> Answer:
    """Join what the cases show; a run that was cut short tells nothing good."""
    cut = [Answer.UNKNOWN] if record.why else []
    return gravest([*(each.answer for each in record.found), *cut])


def make_document(record: Record, keep_evidence: bool = False) -> Document:
    """Put a report together. ``keep_evidence``: write the texts of leaks and wrong answers into it."""
    redactor = Redactor(keep_evidence)
    return Document(
        schema=SCHEMA,
        kvfence=__version__,
        verdict=verdict_of(record),
        why=plain(record.why),
        engine=record.run.engine,
        prefill=plain(record.run.site.urls[Role.PREFILL]),
        decode=plain(record.run.site.urls[Role.DECODE]),
        model=plain(record.model),
        block_size=record.block_size,
        cases=tuple(_case(each, redactor) for each in record.found),
        requests=record.requests,
        tokens=record.tokens,
        seed=record.run.seed,
        wall_s=round(record.wall_s, 3),
    )


def _case(found: Found, redactor: Redactor) -> CaseLine:
    tries = tuple(_line(each, redactor) for each in found.tries)
    return CaseLine(case=found.case.name, does=found.case.does, answer=found.answer, tries=tries)


def _line(seen: Seen, redactor: Redactor) -> Line:
    reply = seen.reply
    if reply is None:
        return Line(answer=seen.answer, why=plain(seen.why))
    digest, kept = redactor.redacted(reply.text)
    return Line(
        answer=seen.answer,
        why=plain(seen.why),
        status=reply.status,
        ms=round(reply.ms, 1),
        length=len(reply.text),
        digest=digest if reply.text else "",
        chance=seen.chance,
        text=plain(kept) if kept is not None and seen.answer.is_bad else None,
    )


def rows(document: Document) -> Iterator[tuple[str, str, str, str, str]]:
    """Give a row for each case, from the try that decided it."""
    for each in document.cases:
        told = next((line for line in each.tries if line.answer is each.answer), None)
        status = str(told.status) if told and told.status is not None else "–"
        ms = f"{told.ms:,.0f}" if told and told.ms is not None else "–"
        yield each.case, str(each.answer), status, ms, told.why if told else ""


def catalogue_rows(cases: tuple[Case, ...]) -> Iterator[tuple[str, str, str]]:
    """Give a row for each case: what is sent, and what that may do."""
    for case in cases:
        flag = f"--{case.name}" + (" (with --allow-crash)" if case.crashes else "")
        yield flag, case.does, case.may
