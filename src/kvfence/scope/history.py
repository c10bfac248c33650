"""Which pool, context and release served from when to when: the file of ``--deployments``, or start-up logs.

::

    [[interval]]
    model = "@cf/zai-org/glm-5.3"    # left out: every model; so for replica and workers
    replica = "pair-1"
    workers = ["decode-1"]           # decode workers, as the logs name them
    from = 2026-08-20T00:00:00Z      # left out: open; a time without a zone is UTC
    to = 2026-09-09T19:04:00Z        # not included
    engine = "sglang"
    release = "0.5.19"
    mode = "disaggregated"           # or "single"
    pool = 681280                    # of prefill, tokens of one rank
    decode_pool = 2040000
    context = 1048576
    vulnerable = true                # overrides what is known of the release

Of two intervals that fit a request the one that names more of its place holds. Not for: classes (``classes.py``).
"""

import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from kvfence.core.errors import EvidenceError
from kvfence.evidence.facts import NOT_SEEN, Known, Origin, Unknown
from kvfence.evidence.sglang import INPUT_MARGIN, REFUSAL_RETIRED_IN
from kvfence.evidence.versions import at_least, release_of
from kvfence.scope.relation import History, Interval

FILE_BYTES_MAX = 1 << 22
TOKENS_MAX = 10**12
_BEGINNING = datetime.fromisoformat("0001-01-01")
MODES = ("disaggregated", "single")
OTHERS_FROM = "0.6"
"""From this number on a release without an engine's name may be another engine's."""
NO_HISTORY = (
    "no history was given (--deployments): every release counts as vulnerable, one pool holds for the whole log"
)


class Table(Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """One ``[[interval]]`` as written."""

    model: str | None = None
    replica: str | None = None
    workers: tuple[str, ...] = ()
    start: Any = None
    end: Any = None
    engine: str | None = None
    release: str | None = None
    mode: str | None = None
    role: str | None = None
    pool: int | None = None
    decode_pool: int | None = None
    context: int | None = None
    vulnerable: bool | None = None
    note: str = ""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of ``--deployments``."""

    interval: tuple[Table, ...]


def load_history(specs: Sequence[str]) -> History:
    """Read what was given as ``--deployments``: TOML files of intervals, start-up logs (``FILE`` or ``FILE=REPLICA``).

    Raises:
        EvidenceError: a file cannot be read, contradicts itself, or says nothing of a pool.
    """
    if not specs:
        return History(notes=(NO_HISTORY,))
    found: list[Interval] = []
    notes: list[str] = []
    logs = [spec for spec in specs if not spec.endswith(".toml")]
    for spec in specs:
        if spec.endswith(".toml"):
            found += _load_file(Path(spec))
    if logs:
        from kvfence.scope.startup import intervals_of_logs

        read, said = intervals_of_logs(logs)
        found += read
        notes += said
    _refuse_overlaps(found)
    if not found:
        raise EvidenceError(f"--deployments {specs[0]}: no interval is in it")
    notes += _notes(found)
    return History(tuple(sorted(found, key=_order)), True, tuple(notes))


def vulnerable_of(release: str | None, engine: str | None, single: bool = False) -> bool | None:
    """Tell whether a release has the defect; None where that cannot be told, True where nothing is said.

    What is known is SGLang's: of another engine nothing is, and a release without an engine's name is taken for one of
    SGLang's only while its number can be.
    """
    if single:
        return False
    if engine is not None and engine.lower() != "sglang":
        return None
    if release is None:
        return True
    known = release_of(Known(release.removeprefix("v"), Origin("")), NOT_SEEN)
    if isinstance(known, Unknown):
        return None
    fixed = at_least(known.value, REFUSAL_RETIRED_IN)
    beyond = at_least(known.value, OTHERS_FROM)
    if isinstance(fixed, Unknown) or (engine is None and beyond is not False):
        return None
    return not fixed


def first_refused(interval: Interval) -> int | None:
    """Give the least prompt length that the interval's prefill refuses; None where its pool is not known."""
    if interval.pool is None:
        return None
    if interval.margin:
        return min(interval.pool, interval.context or interval.pool) - interval.margin
    return interval.pool + 1


def _load_file(path: Path) -> list[Interval]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"--deployments {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise EvidenceError(f"--deployments {path}: {len(data)} bytes; a history has at most {FILE_BYTES_MAX}")
    try:
        document = msgspec.convert(tomllib.loads(data.decode()), Document)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise EvidenceError(f"--deployments {path}: {error}") from error
    return combine(
        [(table.role, _interval(table, f"{path}#{index + 1}")) for index, table in enumerate(document.interval)]
    )


def _interval(table: Table, origin: str) -> Interval:
    for name in ("pool", "decode_pool", "context"):
        value = getattr(table, name)
        if value is not None and not 1 <= value <= TOKENS_MAX:
            raise EvidenceError(
                f"{origin}: {name} = {value}; write a number of tokens above nought, {TOKENS_MAX} at most"
            )
    if table.mode not in (None, *MODES):
        raise EvidenceError(f"{origin}: mode {table.mode!r}; write one of {', '.join(MODES)}")
    if table.role not in (None, "prefill", "decode"):
        raise EvidenceError(f"{origin}: role {table.role!r}; write prefill or decode, or leave it out for a pair")
    start, end = moment(table.start, origin), moment(table.end, origin)
    if start is not None and end is not None and start >= end:
        raise EvidenceError(f"{origin}: it ends at {end} before it begins at {start}")
    single = table.mode == "single"
    known = vulnerable_of(table.release, table.engine, single)
    return Interval(
        start=start,
        end=end,
        model=table.model,
        replica=table.replica,
        workers=table.workers,
        pool=None if table.role == "decode" else table.pool,
        decode_pool=table.pool if table.role == "decode" else table.decode_pool,
        context=table.context,
        engine=table.engine,
        release=table.release,
        single=single,
        margin=INPUT_MARGIN if (table.engine or "").lower() == "sglang" else 0,
        vulnerable=known if table.vulnerable is None else table.vulnerable,
        origin=origin,
    )


def moment(value: object, origin: str) -> datetime | None:
    """Give a time of TOML, or one written as text, in UTC and without its zone."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise EvidenceError(f"{origin}: {value!r} is no time; write 2026-09-09T19:04:00Z") from error
    if isinstance(value, datetime):
        try:
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        except OverflowError as error:
            raise EvidenceError(f"{origin}: {value} is no time; leave it out where it is open") from error
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise EvidenceError(f"{origin}: {value!r} is no time; write 2026-09-09T19:04:00Z")


def combine(parts: Iterable[tuple[str | None, Interval]]) -> list[Interval]:
    """Put what was said of decode alone into the intervals of the same place, cut where decode's pool moves."""
    listed = list(parts)
    decodes = [interval for role, interval in listed if role == "decode"]
    found = [interval for role, interval in listed if role != "decode"]
    for decode in decodes:
        found = [piece for interval in found for piece in _cut(interval, decode)]
    return found


def _cut(interval: Interval, decode: Interval) -> list[Interval]:
    apart = (interval.model or decode.model) != (decode.model or interval.model)
    apart |= (interval.replica or decode.replica) != (decode.replica or interval.replica)
    start = _later(interval.start, decode.start)
    end = _earlier(interval.end, decode.end)
    if apart or interval.single or (start is not None and end is not None and start >= end):
        return [interval]
    sizes = [size for size in (interval.decode_pool, decode.decode_pool) if size is not None]
    most = max((size for size in (interval.decode_most, decode.decode_most) if size is not None), default=None)
    piece = structs.replace(interval, start=start, end=end, decode_pool=min(sizes, default=None), decode_pool_most=most)
    if decode.workers:
        return _of_workers(interval, piece, decode)
    pieces = [piece]
    if start != interval.start:
        pieces.insert(0, structs.replace(interval, end=start))
    if end != interval.end:
        pieces.append(structs.replace(interval, start=end))
    return pieces


def _of_workers(interval: Interval, piece: Interval, decode: Interval) -> list[Interval]:
    """Set what was said of some decode workers beside what holds for the others: it alone tells when they restarted."""
    named = tuple(each for each in decode.workers if not interval.workers or each in interval.workers)
    if not named:
        return [interval]
    own = structs.replace(piece, workers=named, decode_since=decode.start)
    others = tuple(each for each in interval.workers if each not in named)
    if not interval.workers:
        return [interval, own]
    ends = [structs.replace(interval, workers=named, end=piece.start)] if piece.start != interval.start else []
    ends += [structs.replace(interval, workers=named, start=piece.end)] if piece.end != interval.end else []
    return [own, *ends, *([structs.replace(interval, workers=others)] if others else [])]


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _order(interval: Interval) -> tuple[str, str, datetime]:
    return interval.model or "", interval.replica or "", interval.start or _BEGINNING


def _refuse_overlaps(intervals: Sequence[Interval]) -> None:
    """Refuse two intervals of the very same place and time: one of them is wrong."""
    by_place: dict[tuple[Any, ...], list[Interval]] = {}
    for interval in intervals:
        by_place.setdefault((interval.model, interval.replica, tuple(sorted(interval.workers))), []).append(interval)
    for group in by_place.values():
        ordered = sorted(group, key=_order)
        for before, after in pairwise(ordered):
            if before.end is None or after.start is None or before.end > after.start:
                raise EvidenceError(
                    f"--deployments: {before.origin} and {after.origin} speak of the same place at the same time; "
                    "write where the first one ends; of a log say FILE=REPLICA"
                )


def _notes(intervals: Sequence[Interval]) -> list[str]:
    notes = []
    if any(interval.release is None and interval.vulnerable for interval in intervals):
        notes.append("intervals without a release count as vulnerable")
    if any(interval.vulnerable is None for interval in intervals):
        notes.append(
            "of some releases it cannot be told whether they have the defect (another engine's, a fork, or from "
            f"{OTHERS_FROM} on without an engine's name): over the pool, they are UNKNOWN"
        )
    if any(interval.engine is None and interval.release is not None for interval in intervals):
        notes.append(f"releases below {OTHERS_FROM} without an engine's name are taken for SGLang's")
    return notes
