"""What the engine hands to a report: every request's class with its reason, what was read, and by which history.

The contract between classifying (``classes.py``) and reporting. Only plain structs and the names of columns stand
here. Not for: reading logs (``ingest.py``), statistics and pages (``kvfence.scope`` modules above it).

No column holds prompt or output text. Every string comes from a log and may be hostile: escape it where it is shown.
"""

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import ibis


class Class(StrEnum):
    """What a request is, from worst to best; UNKNOWN is never counted as CLEAR."""

    AFFECTED = "AFFECTED"
    LIKELY = "LIKELY"
    POSSIBLE_VICTIM = "POSSIBLE_VICTIM"
    EXCLUDED = "EXCLUDED"
    UNKNOWN = "UNKNOWN"
    CLEAR = "CLEAR"


REASONS = {
    # AFFECTED
    "over_pool": "longer than the prefill pool, within the context, in the window, on a vulnerable release, answered "
    "with 200",
    # LIKELY
    "over_engine_limit": "not over the pool, but of a length that this engine itself refuses; answered with 200",
    "one_token_long_body": "one prompt token was counted beside a body, or another log's count, of many: the "
    "placeholder's mark",
    "ttft_below_prefill": "no length was logged; by its body it is over the pool, and the first token came "
    "sooner than its prefill could take",
    # POSSIBLE_VICTIM
    "in_read_window": "finished on the same decode worker shortly before an affected answer: its pages may "
    "have been read",
    # EXCLUDED: what it would have been
    "excluded_affected": "on the list of exclusions; would be AFFECTED",
    "excluded_likely": "on the list of exclusions; would be LIKELY",
    "excluded_victim": "on the list of exclusions; would be POSSIBLE_VICTIM",
    "excluded_unknown": "on the list of exclusions; would be UNKNOWN",
    # UNKNOWN: never counted as clear
    "victims_not_sought": "there were too many affected answers, or some have no time: whether one of them read this "
    "one's pages was not looked at",
    "no_length": "no prompt length was logged, and the body does not decide",
    "absurd_length": "the logged prompt length is nought, negative or beyond any context",
    "one_token_no_body": "one prompt token was counted and no body size was logged",
    "no_time": "over the pool, but its time is not known",
    "zone_not_known": "over the pool at a time without a zone or an hour, so near a border of the window or of the "
    "history that it may lie beyond it",
    "no_status": "over the pool, but how it was answered is not known",
    "ended_early": "over the pool and broken off before an answer was logged; some of it may have been sent",
    "no_pool": "neither the history nor --pool says which pool served it",
    "release_unknown": "over the pool, on a release of which it cannot be told whether it has the defect",
    "history_disagrees": "over the pool by one fitting interval of the history and not by another",
    "over_context": "longer than the context and yet answered with 200: the history's context cannot be right",
    "over_decode_pool": "longer than the decode pool too and yet answered with 200: the history's pools are wrong",
    # CLEAR
    "fits": "fits the pool that served it",
    "body_fits": "no length was logged, and its body is too small to be over the pool",
    "refused": "refused, or failed without an answer",
    "outside_window": "over the pool, outside the window",
    "fixed_release": "over the pool, on a release without the defect",
    "single_node": "over the pool of a single node, where the engine refuses rightly",
}
"""Code of a reason and its plain sentence; a class has only the codes listed under it."""

CLASS_OF_REASON = {
    **dict.fromkeys(("over_pool",), Class.AFFECTED),
    **dict.fromkeys(("over_engine_limit", "one_token_long_body", "ttft_below_prefill"), Class.LIKELY),
    "in_read_window": Class.POSSIBLE_VICTIM,
    **dict.fromkeys(("fits", "body_fits", "refused", "outside_window", "fixed_release", "single_node"), Class.CLEAR),
    **{code: Class.EXCLUDED for code in REASONS if code.startswith("excluded_")},
}
CLASS_OF_REASON |= {code: Class.UNKNOWN for code in REASONS if code not in CLASS_OF_REASON}

UNREAD = frozenset(
    {
        *("cannot_be_read", "broken_off", "no_column", "line_too_long", "not_json", "not_a_row", "not_an_access_line"),
        *("request_line_unreadable", "not_utf8", "control_bytes", "map_not_there"),
    }
)
"""Kinds of ``Trouble``: lines that were not read, or not as they stand. One of them may be anybody's request."""

REQUEST_COLUMNS = {
    "request_id": "string",
    "started": "timestamp(6)",
    "account": "string",
    "model": "string",
    "replica": "string",
    "worker": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "status": "int64",
    "ttft_ms": "float64",
    "duration_ms": "float64",
    "body_bytes": "int64",
    "release": "string",
}
"""What is read of a request, every column nullable.

Units:
    started: UTC, without a zone. request_id: never null after reading: ``FILE:ROW`` stands in where none was logged.
    worker: the decode worker, where logged. body_bytes: of the request, not of the response.
"""

CLASSIFIED_COLUMNS = {
    **REQUEST_COLUMNS,
    "source_file": "string",
    "source_line": "int64",
    "pool_tokens": "int64",
    "context_tokens": "int64",
    "vulnerable": "boolean",
    "would_be": "string",
    "class": "string",
    "reason": "string",
    "victim_of": "int64",
    "besides": "string",
}
"""``Relation.classified``: one row a request.

    release: as logged, else as the history says. pool_tokens: the prefill pool that served it.
    would_be: the class it had without --exclude. victim_of: in the read windows of so many affected answers.
    besides: of a possible victim, the reason for which it would be UNKNOWN else.
    source_line: of a text from 1; a row's number in Parquet and in a warehouse; null where not known.
"""

PLACE_COLUMNS = {
    "hour": "timestamp(6)",
    "model": "string",
    "replica": "string",
    "worker": "string",
    "requests": "int64",
    "long_requests": "int64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "longest_prompt": "int64",
}
"""``Relation.places``: all traffic, CLEAR or not, by the hour it started in and where it was served."""

ACCOUNT_COLUMNS = {
    "account": "string",
    "requests": "int64",
    "long_requests": "int64",
    "longest_prompt": "int64",
    "first": "timestamp(6)",
    "last": "timestamp(6)",
}
"""``Relation.accounts``: all traffic by account (null: no account logged)."""

LENGTH_COLUMNS = {"model": "string", "bucket": "int64", "requests": "int64"}
"""``Relation.lengths``: a histogram of prompt lengths; a bucket b holds lengths of [2^(b/4), 2^((b+1)/4))."""


class Choice(Struct, frozen=True):
    """Which field of a source stands for which column. ``how``: "name", "--map", "format" or "value"."""

    column: str
    field: str
    how: str


class Trouble(Struct, frozen=True):
    """Something that could not be read, or not be believed. ``kind``: a short code. ``first``: where, from 1."""

    kind: str
    count: int
    text: str = ""
    first: int | None = None


class Reading(Struct, frozen=True):
    """What was found in one source.

    rows: requests read. lines: physical lines or rows, read or not.
    troubles: rows left out, values not believed, damage; each is counted, none is silent.
    """

    source: str
    format: str
    compression: str = ""
    choices: tuple[Choice, ...] = ()
    missing: tuple[str, ...] = ()
    rows: int = 0
    lines: int | None = None
    bytes: int | None = None
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_unread(self) -> int:
        """Count what was not read, or not as it stands."""
        return sum(each.count for each in self.troubles if each.kind in UNREAD)


class Interval(Struct, frozen=True):
    """What served from when to when. None in a place: every one; in a time: open; in a number: not said.

    Units: start, end: UTC, [start, end). pool, decode_pool, context, margin: tokens; margin: by how much the engine's
        own limit lies below min(context, pool), 0 where the engine is not known.
    vulnerable: None: cannot be told. origin: the file and table, or the log line, that says so.
    decode_pool: the least that was said of these workers; decode_pool_most: the greatest, where it is another.
    decode_since: when the decode workers were started, where that was said of them by name.
    """

    start: datetime | None = None
    end: datetime | None = None
    model: str | None = None
    replica: str | None = None
    workers: tuple[str, ...] = ()
    pool: int | None = None
    decode_pool: int | None = None
    context: int | None = None
    engine: str | None = None
    release: str | None = None
    single: bool = False
    margin: int = 0
    vulnerable: bool | None = True
    origin: str = ""
    decode_pool_most: int | None = None
    decode_since: datetime | None = None

    @property
    def decode_most(self) -> int | None:
        """Give the largest pool that decode may have had."""
        return self.decode_pool if self.decode_pool_most is None else self.decode_pool_most


class History(Struct, frozen=True):
    """The intervals of a deployment. given: False where there is none: all releases vulnerable, the whole log."""

    intervals: tuple[Interval, ...] = ()
    given: bool = False
    notes: tuple[str, ...] = ()


class Duplicates(Struct, frozen=True):
    """Rows that are one request, merged: ``same`` say the same, ``retried`` are tries and halves of it.

    shared_ids: ids that several accounts have. reused: requests beside another one of their id and account, of another
    length or time: each is counted. exact: False where plainly clear rows were too many to be compared.
    """

    same: int = 0
    retried: int = 0
    shared_ids: int = 0
    exact: bool = True
    reused: int = 0


class Relation(Struct, frozen=True):
    """Everything a report is made of.

    classified: an ibis table on a local DuckDB, ``CLASSIFIED_COLUMNS``, one row for every request that is not plainly
        CLEAR, and for every CLEAR one of ``long_tokens`` and more (the baseline of long-context traffic). Short CLEAR
        requests are only in ``places``, ``accounts``, ``lengths`` and ``counts``: there may be a hundred million.
    counts: requests by class, all of them; ``reasons``: by reason.
    window: as given, else the first and the last time of the logs.
    assumptions: plain sentences that the classes rest on; a report shows them all.
    read_windows: for possible victims: (worker or replica, start, end, request id of the affected answer).
    victims_also_unknown: possible victims that would be UNKNOWN else.
    """

    classified: "ibis.Table"
    places: "ibis.Table"
    accounts: "ibis.Table"
    lengths: "ibis.Table"
    counts: dict[str, int]
    reasons: dict[str, int]
    readings: tuple[Reading, ...]
    history: History
    duplicates: Duplicates
    long_tokens: int
    window: tuple[datetime | None, datetime | None]
    window_given: bool
    pool: int | None
    context: int | None
    assumptions: tuple[str, ...] = ()
    skews: tuple[Trouble, ...] = ()
    read_windows: tuple[tuple[str, datetime, datetime, str], ...] = ()
    victims_also_unknown: int = 0
