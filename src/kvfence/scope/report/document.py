"""The report as one JSON document, which every other form is drawn from.

Accounts and request ids stand in it as pseudonyms unless names were asked for (``pseudonyms.py``).
"""

from typing import Any

from msgspec import Struct, ValidationError, json

from kvfence.core.errors import EvidenceError
from kvfence.scope.conduct import Conduct
from kvfence.scope.relation import Duplicates, Interval, Reading, Trouble

SCHEMA = "kvfence-scope/1"

IDS_MAX = 1_000_000
"""Request ids that a document holds. The CSV file has the others, and the document says how many were left out."""

ACCOUNTS_MAX = 500_000
TOLD_MAX = 100
"""Requests of one account and class that a document describes for a letter; the CSV file has all."""


class Tally(Struct, frozen=True, omit_defaults=True):
    """Requests by class. requests, long: of all classes, and those of the long-context baseline.

    possible_victims_also_unknown: of the possible victims, those that would be UNKNOWN if they were none.
    """

    requests: int = 0
    long: int = 0
    affected: int = 0
    likely: int = 0
    possible_victims: int = 0
    excluded: int = 0
    unknown: int = 0
    possible_victims_also_unknown: int = 0


class Line(Struct, frozen=True, omit_defaults=True):
    """One line of a table: a day, a replica. name: None where the logs say none."""

    name: str | None
    tally: Tally
    longest: int | None = None


class ModelLine(Struct, frozen=True):
    """One model. verdict: EXPOSED, UNREACHABLE or UNKNOWN; why: the arithmetic, one sentence a deployment."""

    name: str | None
    verdict: str
    why: tuple[str, ...]
    tally: Tally
    longest: int | None


class Ids(Struct, frozen=True, omit_defaults=True):
    """Request ids of one account by class, in the order of time; left_out: those beyond ``IDS_MAX``."""

    affected: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    possible_victims: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    left_out: int = 0


class Told(Struct, frozen=True, omit_defaults=True):
    """A request as its sender can recognise it: when it began (UTC), how long the prompt was, and the class."""

    klass: str
    started: str | None = None
    prompt_tokens: int | None = None
    model: str | None = None


class AccountLine(Struct, frozen=True, omit_defaults=True):
    """One account. longest: tokens of its longest prompt; first, last: when it asked (UTC).

    told: its requests that are not clear, the worst first, at most ``TOLD_MAX`` of a class.
    """

    name: str | None
    tally: Tally
    longest: int | None = None
    first: str | None = None
    last: str | None = None
    ids: Ids = Ids()
    told: tuple[Told, ...] = ()


class Reason(Struct, frozen=True):
    """How many requests got a class for one reason, and the reason in words."""

    code: str
    klass: str
    requests: int
    text: str


class Bar(Struct, frozen=True):
    """Prompts of ``low`` to below ``high`` tokens to exposed models; affected: of these."""

    low: int
    high: int
    requests: int
    affected: int


class Timing(Struct, frozen=True):
    """Whether prompts above the limit come when long prompts come; counts: (above, baseline) by place."""

    name: str
    places: tuple[str, ...]
    above: tuple[int, ...]
    baseline: tuple[int, ...]
    p: float | None


class Behaviour(Struct, frozen=True):
    """What timing and volume look like. verdict: ordinary, probing, differs or unknown; words: for a reader."""

    verdict: str
    words: tuple[str, ...]
    timings: tuple[Timing, ...]
    tested: tuple[Conduct, ...]
    accounts_above: int
    above: int


class Period(Struct, frozen=True):
    """From when to when (UTC). given: False where it is simply what the logs cover."""

    start: str | None
    end: str | None
    given: bool


class Names(Struct, frozen=True):
    """How accounts and ids are written. key: a fingerprint that tells whether a key is the one."""

    pseudonyms: bool
    key: str = ""


class Document(Struct, frozen=True):
    """One report. accounts_left_out: without a finding and beyond ``ACCOUNTS_MAX``.

    possible_victims_also_unknown: those that would be UNKNOWN if they were no possible victims: each is counted once.
    """

    schema: str
    kvfence: str
    as_of: str | None
    affected: int
    likely: int
    possible_victims: int
    possible_victims_also_unknown: int
    excluded: int
    unknown: int
    clear: int
    requests: int
    period: Period
    pool: int | None
    context: int | None
    long_tokens: int
    names: Names
    reasons: tuple[Reason, ...]
    models: tuple[ModelLine, ...]
    days: tuple[Line, ...]
    replicas: tuple[Line, ...]
    accounts: tuple[AccountLine, ...]
    accounts_left_out: int
    lengths: tuple[Bar, ...]
    behaviour: Behaviour
    history: tuple[Interval, ...]
    history_given: bool
    readings: tuple[Reading, ...]
    duplicates: Duplicates
    troubles: tuple[Trouble, ...]
    assumptions: tuple[str, ...]


def to_json(document: Document) -> str:
    """Give the document as indented JSON."""
    return json.format(json.encode(document), indent=2).decode() + "\n"


def from_json(text: bytes, name: str) -> Document:
    """Read a document that ``to_json`` gave.

    Raises:
        EvidenceError: it is not JSON, not such a document, or of another schema.
    """
    try:
        head: Any = json.decode(text)
        schema = head.get("schema") if isinstance(head, dict) else None
        if schema != SCHEMA:
            raise EvidenceError(f"{name} is not a report of this kvfence: its schema must be {SCHEMA}")
        return json.decode(text, type=Document)
    except ValidationError as error:
        raise EvidenceError(f"{name} is damaged: {error}") from None
    except (ValueError, UnicodeDecodeError):
        raise EvidenceError(f"{name} is not JSON: give the file that scope report wrote") from None
