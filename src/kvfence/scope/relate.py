"""From logs to classes: reads, surveys, judges, looks for possible victims, and adds everything up.

Read next: ``relation.py`` (what comes out), ``survey.py`` (all rows), ``classes.py`` (the few that matter).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import duckdb
import ibis
from msgspec import Struct, structs

from kvfence.core.errors import EvidenceError, SettingsError
from kvfence.scope import tally, victims
from kvfence.scope.as_of import as_of
from kvfence.scope.classes import Judgement, classify, intervals_of, rates
from kvfence.scope.columns import parse_maps
from kvfence.scope.doubts import mark_unsought, move_uncovered, move_unsought
from kvfence.scope.exclusions import Exclusions, load_exclusions
from kvfence.scope.history import first_refused, load_history
from kvfence.scope.ingest import Sources, ingest, whole
from kvfence.scope.merging import merged, prepared
from kvfence.scope.relation import CLASS_OF_REASON, Class, Reading, Relation, Trouble
from kvfence.scope.staging import Plan
from kvfence.scope.store import Store, number_of
from kvfence.scope.survey import EXACT_ROWS_MAX, Bounds, Survey, clean, plain_reason, survey
from kvfence.scope.victims import Reach, Unsought, Window
from kvfence.scope.warehouse import open_tables


class Request(Struct, frozen=True):
    """What a report is asked for.

    Units: pool, context, decode_pool: tokens. window: [from, to) in UTC. horizon_s: seconds. as_of: later requests are
        left out, as if it were then. prefill_rate: tokens a second, where the log cannot show it.
    """

    logs: tuple[str, ...]
    pool: int | None = None
    context: int | None = None
    decode_pool: int | None = None
    window: tuple[datetime | None, datetime | None] = (None, None)
    deployments: tuple[str, ...] = ()
    exclude: tuple[Path, ...] = ()
    maps: tuple[str, ...] = ()
    zone: str | None = None
    backend: str | None = None
    horizon_s: float | None = None
    prefill_rate: float | None = None
    as_of: datetime | None = None


def relate(store: Store, request: Request) -> Relation:
    """Give every request's class, and all that a report needs besides.

    Raises:
        EvidenceError: logs or history cannot be read, or hold nothing.
        SettingsError: neither --pool nor a history's pool was given, or an option is wrong.
    """
    history = load_history(request.deployments)
    exclusions = load_exclusions(request.exclude)
    judgement = Judgement(history, request.pool, request.context, request.window, zone=request.zone)
    floor = _floor(judgement)
    sources = _open(store, request)
    try:
        return _judge(store, request, sources, (judgement, exclusions, floor))
    except ibis.common.exceptions.IbisError as error:
        if request.backend is None:
            raise
        said = type(error).__name__
        raise EvidenceError(f"--backend: this one cannot answer what is asked ({said}); export the logs") from error
    except duckdb.Error:
        broken = frozenset(name for name in sources.parquet if not whole(store, name))
        if not broken:
            raise
    # A file whose end is sound and whose middle is not: without it, and it is said.
    sources = _open(store, request, broken)
    return _judge(store, request, sources, (judgement, exclusions, floor))


def _judge(store: Store, request: Request, sources: Sources, by: tuple[Judgement, Exclusions, int]) -> Relation:
    judgement, exclusions, floor = by
    source = sources.table
    now = datetime.now(UTC).replace(tzinfo=None)
    if request.as_of is not None:
        source, sources = as_of(source, sources, request.as_of)
    bounds = Bounds(floor, max(floor // 2, 2), now)
    seen = survey(store, sources, source, bounds)
    if seen.rows == 0:
        raise EvidenceError(f"no request is in {', '.join(request.logs[:5])}")
    work = _Work(store, source, seen.bounds, seen)
    return _relation(work, judgement, request, (exclusions, sources))


class _Work(Struct, frozen=True):
    store: Store
    source: Any
    bounds: Bounds
    seen: Survey

    @property
    def is_local(self) -> bool:
        """Tell whether the rows lie in files, so that they can be joined with local tables."""
        return self.store.holds(self.source)

    @property
    def is_exact(self) -> bool:
        """Tell whether all rows are compared with each other."""
        return self.is_local and self.seen.rows <= EXACT_ROWS_MAX


def _open(store: Store, request: Request, broken: frozenset[str] = frozenset()) -> Sources:
    maps = parse_maps(request.maps)
    zone = request.zone or "UTC"
    if zone not in available_timezones():
        raise SettingsError([f"--time-zone {request.zone}: write a name such as Europe/Berlin"])
    if request.backend is not None:
        return open_tables(request.backend, request.logs, maps)
    year = request.window[0].year if request.window[0] is not None else None
    return ingest(store, request.logs, Plan(maps, zone, year, broken=broken))


def _floor(judgement: Judgement) -> int:
    """Give the least length that any pool refuses."""
    sizes = [size for each in intervals_of(judgement) if (size := first_refused(each)) is not None]
    if judgement.pool is not None:
        sizes.append(judgement.pool + 1)
    if not sizes:
        raise SettingsError(["say which pool served the requests: --pool TOKENS, or --deployments FILE"])
    return min(sizes)


def _relation(work: _Work, judgement: Judgement, request: Request, given: tuple[Exclusions, Sources]) -> Relation:
    exclusions, sources = given
    store, bounds, seen = work.store, work.bounds, work.seen
    rows, taken = _with_twins(work) if work.is_exact else (seen.kept, {})
    ready = prepared(store, rows)
    unsaid = number_of(ready.filter(ready["tokens"].isnull() & ready["body_bytes"].notnull()).count())
    bytes_per_token, speed = rates(store, work.source, bounds.floor) if unsaid else (None, None)
    judgement = structs.replace(judgement, bytes_per_token=bytes_per_token, tokens_per_s=request.prefill_rate or speed)
    judged, spared = tally.excluded(store, classify(store, ready, judgement), exclusions)
    kept, duplicates = merged(store, judged)
    one_each = store.keep("one_each", kept)
    sought = _victims(work, one_each, Reach(request.horizon_s, request.decode_pool), exclusions)
    classified, less, windows = sought.classified, sought.less, sought.windows
    if sought.unsought is not None:
        classified = mark_unsought(store, classified, sought.unsought)
    reasons = tally.by_reason(classified)
    if work.is_exact:
        same = tally.plain_duplicates(store, work.source, rows, bounds)
        less["fits"] = less.get("fits", 0) + same
        duplicates = structs.replace(duplicates, same=duplicates.same + same)
    tally.add_plain(reasons, seen, taken, less)
    looked_at = [rows] + ([store.ibis.table("new_victims")] if windows else [])
    moved = move_uncovered(store, reasons, judgement, looked_at, bounds.now)
    if sought.unsought is not None:
        move_unsought(store, reasons, sought.unsought, looked_at)
    besides = classified.filter((classified["class"] == str(Class.POSSIBLE_VICTIM)) & classified["besides"].notnull())
    baseline = (classified["class"] != str(Class.CLEAR)) | (classified["prompt_tokens"] >= bounds.long)
    readings = _readings(sources.readings, seen)
    return Relation(
        classified=store.keep("classified", classified.filter(baseline.fill_null(False))),
        places=seen.places,
        accounts=seen.accounts,
        lengths=seen.lengths,
        counts=tally.by_class(reasons),
        reasons=reasons,
        readings=readings,
        history=judgement.history,
        duplicates=structs.replace(duplicates, exact=work.is_exact),
        long_tokens=bounds.long,
        window=(request.window[0] or seen.first, request.window[1] or seen.last),
        window_given=any(request.window),
        pool=request.pool,
        context=request.context,
        assumptions=(
            *assumptions(judgement, request, windows, (work.is_exact, moved)),
            *_said_of_unsought(sought.unsought),
            *_said_of_values(request, readings, reasons),
        ),
        skews=tuple(_spared(spared + sought.spared)),
        read_windows=tuple((each.place, each.start, each.end, each.request_id) for each in windows),
        victims_also_unknown=number_of(besides.count()),
    )


def _said_of_unsought(unsought: Unsought | None) -> Iterator[str]:
    if unsought is not None:
        when = "at any time" if unsought.start is None else f"from {unsought.start:%Y-%m-%d %H:%M} UTC on"
        yield (
            f"whose pages {unsought.answers:,} affected answers read was not looked for (more than "
            f"{victims.ANSWERS_MAX:,}, or without a time): what would be clear {when} is UNKNOWN"
        )


def _said_of_values(request: Request, readings: Sequence[Reading], reasons: Mapping[str, int]) -> Iterator[str]:
    """Say what is taken for granted of times without a zone, and of bodies."""
    naive = any(each.kind in {"no_zone", "day_only"} for reading in readings for each in reading.troubles)
    if naive and request.zone is None:
        yield (
            "times without a zone are read as UTC and may be 14 hours earlier or 12 later: over the pool and so near a "
            "border of the window or of the history they are UNKNOWN (--time-zone says the zone); possible victims are "
            "looked for as if all clocks agreed"
        )
    unknown = sum(count for reason, count in reasons.items() if CLASS_OF_REASON[reason] is Class.UNKNOWN)
    if unknown - reasons.get("victims_not_sought", 0):
        yield "possible victims are those of AFFECTED and LIKELY answers; none were looked for of what is UNKNOWN"
    if reasons.get("body_fits"):
        yield (
            "where no length was logged a small body counts as the whole prompt: not packed, unless the log names an "
            "encoding, and without text by reference (files, earlier answers)"
        )


def _spared(count: int) -> Iterator[Trouble]:
    if count:
        text = "--exclude request:ID of an id that several accounts have: excluded none; write request:ACCOUNT/ID"
        yield Trouble("exclusion_of_several", count, text)


def _with_twins(work: _Work) -> tuple[Any, dict[str, int]]:
    """Add the plainly clear rows that bear the id of one that is not: halves and retries. Give how many, by reason."""
    store, source, rows = work.store, work.source, work.seen.kept
    named = rows.filter(plain_reason(rows, work.bounds).isnull() & clean(rows["request_id"]).notnull())
    ids = store.keep("doubtful_ids", named.select("request_id").distinct())
    if number_of(ids.count()) == 0:
        return rows, {}
    short = source.filter(source["prompt_tokens"].between(2, work.bounds.long - 1))
    twins = store.keep("twins", short.semi_join(ids, "request_id"), "looking for other rows of the same requests")
    taken = tally.by_reason(twins.select(reason=plain_reason(twins, work.bounds)))
    return store.keep("with_twins", ibis.union(rows, twins.select(*rows.columns))), taken


class _Sought(Struct, frozen=True):
    """What looking for possible victims gave. less: plainly clear rows that became some, by reason."""

    classified: Any
    less: dict[str, int]
    windows: list[Window]
    unsought: Unsought | None
    spared: int = 0


def _victims(work: _Work, one_each: Any, reach: Reach, exclusions: Exclusions) -> _Sought:
    """Look for possible victims of what was affected."""
    store = work.store
    windows, unsought = victims.windows_of(one_each, reach)
    if not windows:
        return _Sought(tally.shaped(one_each.mutate(victim_of=ibis.literal(0))), {}, [], unsought)
    ranked = store.ibis.table("ranked")
    found, windows = victims.find_victims(store, work.source, work.seen.places, windows, ranked)
    classified, less = tally.with_victims(store, one_each, found, work.bounds)
    would_be = classified.mutate(**{"class": classified["would_be"]})
    again = would_be.filter(would_be["would_be"] == str(Class.POSSIBLE_VICTIM))
    rest = classified.filter((classified["would_be"] != str(Class.POSSIBLE_VICTIM)).fill_null(True))
    marked, spared = tally.excluded(store, again, exclusions)
    whole = store.keep("all_classes", ibis.union(tally.shaped(rest), tally.shaped(marked)))
    return _Sought(whole, less, windows, unsought, spared)


def _readings(readings: dict[str, Reading], seen: Survey) -> tuple[Reading, ...]:
    """Give each source's reading with what its rows were found to hold."""
    return tuple(
        structs.replace(each, troubles=(*each.troubles, *seen.troubles.get(name, ())))
        for name, each in readings.items()
    )


def assumptions(
    judgement: Judgement, request: Request, windows: Sequence[Window], counted: tuple[bool, int]
) -> Iterator[str]:
    """Say, in plain sentences, what the classes rest on."""
    is_exact, uncovered = counted
    yield from judgement.history.notes
    if not any(request.window):
        yield "no window was given: it is the whole log"
    if not judgement.history.given and request.context is None:
        yield "no context was given (--context): no prompt counts as longer than it"
    if any(each.margin for each in judgement.history.intervals):
        yield "SGLang refuses from min(context, pool) - 6 tokens on: from there to the pool an answer is LIKELY"
    else:
        yield "a prompt of the pool's size fits; where the history names SGLang, its limit is taken 6 tokens lower"
    if not is_exact:
        yield "duplicates were looked for among requests that are not plainly clear alone: there are too many rows"
    if uncovered:
        yield f"{uncovered:,} short requests are UNKNOWN: neither the history nor --pool says which pool served them"
    if judgement.bytes_per_token is not None and judgement.tokens_per_s is not None:
        yield (
            f"where no length was logged: at most {judgement.bytes_per_token:.2f} bytes of body a token and at most "
            f"{judgement.tokens_per_s:,.0f} tokens a second of prefill, as this log's ordinary requests show"
        )
    else:
        yield "too few long requests have length, body size and TTFT: requests without a length are not LIKELY by TTFT"
    if windows:
        known = [each for each in windows if each.tokens]
        yield (
            "possible victims finished on the same decode worker, or where none is logged on what may have been it: of "
            f"{len(windows)} answers, for {len(known)} within the last turnover of decode's pool (pages re-used in the "
            "order in which they were freed), for the others within a time (--horizon)"
        )
