"""Whose pages could have been read: requests that finished on the decode worker shortly before an affected answer.

An affected answer read pages that earlier requests had left. Pages are taken to be re-used in the order in which they
were freed, so that what lies in free pages is at most the last ``decode_pool`` tokens that finished on that worker;
where the worker or the size is not known, a time bounds it. Neither proves that a page was read: the class says
*possible*. Whoever may have been on that worker, as far as its row says, is one; ``spots.py`` says who may.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import ibis
from msgspec import Struct, structs

from kvfence.scope.merging import row_key
from kvfence.scope.relation import REQUEST_COLUMNS, Class
from kvfence.scope.spots import PARTS, Spot, name_of, spots_that_fit
from kvfence.scope.store import Store, rows_of
from kvfence.scope.survey import clean, length_of, never_ran
from kvfence.scope.values import Value

HORIZON_S = 3600
"""Seconds back from an affected answer where the size of decode's pool is not known."""
HORIZON_WITH_POOL_S = 24 * 3600
"""Seconds back at most where it is known: then the pool's turnover bounds it sooner on any busy worker."""
UNTOLD_S = 600
"""Seconds that a request may have taken of which no time is logged."""
ROUND_GROWTH = 4
ROUNDS_MAX = 8
ANSWERS_MAX = 20_000
_SLACK_S = 6 * 3600
"""No request runs longer: a row that started earlier cannot have finished within a window."""
_SLACK = timedelta(seconds=_SLACK_S)
RANGES_MAX = 8
"""So many parts of the logs are read one by one: each opens all files anew."""
NOWHERE = "(not logged)"
_CARRIED = (*REQUEST_COLUMNS, "bad", "source_file", "source_line", "row_key", "one")


class Reach(Struct, frozen=True):
    """How far back pages are looked for. Units: horizon_s: seconds, None: by what is known; decode_pool: tokens."""

    horizon_s: float | None = None
    decode_pool: int | None = None


class Window(Struct, frozen=True):
    """One affected answer and the time in which pages that it read were freed.

    tokens: decode's pool; 0: not known, or not which worker's. one: the number of the answer's request.
    """

    place: str
    start: datetime
    end: datetime
    request_id: str
    tokens: int
    spot: Spot = Spot()
    one: int = -1


class Unsought(Struct, frozen=True):
    """Affected answers whose victims were not looked for, and when these may have finished. None: at any time."""

    answers: int
    start: datetime | None
    end: datetime | None


def place_of(rows: Any) -> Value:
    """Give where a request decoded, as exactly as it was logged: the worker, else the replica, else the model."""
    return ibis.coalesce(clean(rows["worker"]), clean(rows["replica"]), clean(rows["model"]), NOWHERE)


def windows_of(judged: Any, reach: Reach) -> tuple[list[Window], Unsought | None]:
    """Give the longest window of each answer that was affected, or likely so, and the answers that have none.

    Whether excluded or not. A window begins later only where the decode worker itself is known to have been started.
    """
    answers = judged.filter(judged["would_be"].isin([str(Class.AFFECTED), str(Class.LIKELY)]))
    ran_ms = ibis.coalesce(_believed(answers["ttft_ms"]), _believed(answers["duration_ms"]), UNTOLD_S * 1000.0)
    chosen = answers.select(
        *("request_id", "started", "worker", "replica", "model", "decode_most", "decode_since", "one"),
        place=place_of(answers),
        ran_ms=ran_ms,
    )
    timed = chosen.filter(chosen["started"].notnull()).order_by("started", "request_id", "one")
    windows = [_window(row, reach) for row in rows_of(timed.limit(ANSWERS_MAX))]
    return windows, _unsought(chosen, len(windows), reach)


def _window(row: dict[str, Any], reach: Reach) -> Window:
    tokens = row["decode_most"] or reach.decode_pool or 0
    if row["worker"] is None:
        tokens = 0  # several workers may stand behind a replica, and all that they finish goes through several pools
    horizon = reach.horizon_s or (HORIZON_WITH_POOL_S if tokens else HORIZON_S)
    end = row["started"] + timedelta(milliseconds=row["ran_ms"])
    start = row["started"] - timedelta(seconds=horizon)
    if row["decode_since"] is not None and row["worker"] is not None:
        start = max(start, min(row["decode_since"], end))
    spot = Spot(row["worker"], row["replica"], row["model"])
    return Window(row["place"], start, end, row["request_id"], tokens, spot, row["one"])


def _unsought(answers: Any, sought: int, reach: Reach) -> Unsought | None:
    """Say how many answers have no window, and from when to when their victims may have finished."""
    counted = rows_of(answers.aggregate(rows=answers.count(), timed=answers["started"].count()))[0]
    rest = counted["rows"] - sought
    if not rest:
        return None
    if counted["timed"] < counted["rows"]:
        return Unsought(rest, None, None)
    late = answers.order_by("started", "request_id", "one").limit(None, offset=sought)
    times = rows_of(late.aggregate(first=late["started"].min(), last=late["started"].max()))[0]
    horizon = timedelta(seconds=reach.horizon_s or HORIZON_WITH_POOL_S)
    return Unsought(rest, times["first"] - horizon, times["last"] + _SLACK)


def find_victims(
    store: Store, rows: Any, places: Any, windows: Sequence[Window], known: Any
) -> tuple[Any, list[Window]]:
    """Give the rows that finished within a window and its pool's turnover, each with the number of such windows.

    Windows are first guessed from the traffic of the hour, and made longer where they hold less than the pool.
    known: rows that were judged, by ``row_key``, with the number ``one`` of their request.
    """
    rates = _rates(places)
    begun = min((hour for _place, hour in rates), default=None)
    if begun is not None:
        windows = [structs.replace(each, start=min(max(each.start, begun), each.end)) for each in windows]
    spans = [_guess(window, rates) for window in windows]
    ones = store.keep("ones", known.group_by("row_key").aggregate(one=known["one"].min()))
    finished = _pull(store, rows, windows, spans, (places, ones))
    for _round in range(ROUNDS_MAX):
        held = _held(store, finished, windows, spans)
        short = [
            number
            for number, window in enumerate(windows)
            if window.tokens and held.get(number, 0) < window.tokens and spans[number] > window.start
        ]
        if not short:
            break
        for number in short:
            window = windows[number]
            spans[number] = max(window.start, window.end - ROUND_GROWTH * (window.end - spans[number]))
        finished = _pull(store, rows, windows, spans, (places, ones))
    return _within(store, finished, windows, spans), [
        structs.replace(window, start=span) for window, span in zip(windows, spans, strict=True)
    ]


def _rates(places: Any) -> dict[tuple[str, datetime], float]:
    """Give tokens a second by place and hour."""
    rows = places.filter(places["hour"].notnull()).mutate(place=place_of(places))
    sums = rows.group_by("place", "hour").aggregate(tokens=(rows["prompt_tokens"] + rows["completion_tokens"]).sum())
    return {(row["place"], row["hour"]): float(row["tokens"] or 0) / 3600 for row in rows_of(sums)}


def _guess(window: Window, rates: dict[tuple[str, datetime], float]) -> datetime:
    """Guess from when on a window holds twice the pool."""
    if not window.tokens:
        return window.start
    hour = window.end.replace(minute=0, second=0, microsecond=0)
    rate = max(rates.get((window.place, hour), 0.0), rates.get((window.place, hour - timedelta(hours=1)), 0.0))
    seconds = 2 * window.tokens / rate if rate > 0 else 3600.0
    return max(window.start, window.end - timedelta(seconds=min(max(seconds, 60.0), 86400.0)))


def _believed(ran_ms: Value) -> Value:
    return ibis.ifelse(ran_ms.between(0, _SLACK_S * 1000), ran_ms, ibis.null("float64"))


def _ran_ms(rows: Any) -> Value:
    return _believed(rows["duration_ms"]).fill_null(0.0)


def _finished(rows: Any) -> Value:
    return rows["started"] + (_ran_ms(rows) * 1000).cast("int64").as_interval("us")


def _pull(
    store: Store,
    source: Any,
    windows: Sequence[Window],
    spans: Sequence[datetime],
    known: tuple[Any, Any],
) -> Any:
    """Keep the rows that finished in a minute of any window on a worker that may be its own."""
    places, ones = known
    wanted = _minutes(windows, spans)
    fits = spots_that_fit(store, places, [window.spot for window in windows])
    listed = [{"minute": minute, "at": spot.name} for minute, spot in wanted]
    at = store.hold("minutes_at", listed, {"minute": "int64", "at": "string"})
    minutes_of_spots = at.inner_join(fits, "at").select("minute", "spot").distinct()
    ranges = _ranges(windows, spans)
    if not store.holds(source):
        rows = _with_minute(source.filter(source["started"].between(ranges[0][0] - _SLACK, ranges[-1][1])))
        near = rows.filter(rows["minute"].isin(sorted({minute for minute, _spot in wanted})))
        near = store.keep("near", near, "looking for possible victims")
    else:
        minutes = store.keep("minutes", minutes_of_spots.select("minute").distinct())
        near = _with_minute(_near(source, ranges)).semi_join(minutes, "minute")
    # Texts are made clean once a spot, not once a row: that is what makes it cheap.
    written = store.ibis.table("places_raw").select(*PARTS).distinct()
    wanted = written.mutate(spot=name_of(written)).inner_join(minutes_of_spots, "spot")
    there = near.filter(~never_ran(near)).mutate(finished=_finished(near))
    same = [there["minute"] == wanted["minute"], *(there[part].identical_to(wanted[part]) for part in PARTS)]
    found = there.inner_join(wanted, same).select(*there.columns, "spot")
    chosen = store.keep("finished_near", found, "looking for possible victims")
    held = ibis.coalesce(length_of(chosen), 0) + ibis.ifelse(
        chosen["completion_tokens"] > 0, chosen["completion_tokens"], 0
    ).fill_null(0)
    answered = chosen.mutate(held=held, row_key=row_key(chosen))
    return store.keep("finished", answered.left_join(ones, "row_key").drop("row_key_right"))


def _ranges(windows: Sequence[Window], spans: Sequence[datetime]) -> list[tuple[datetime, datetime]]:
    """Give the times that windows hold, in order; as few as leave out the long times between them."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in sorted((start, window.end) for window, start in zip(windows, spans, strict=True)):
        if found and start - _SLACK <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    while len(found) > RANGES_MAX:
        gaps = [(later[0] - before[1], place) for place, (before, later) in enumerate(pairwise(found))]
        place = min(gaps)[1]
        found[place : place + 2] = [(found[place][0], found[place + 1][1])]
    return found


def _near(source: Any, ranges: Sequence[tuple[datetime, datetime]]) -> Any:
    """Give the rows that may have finished in one of some times, each read apart: files say when their parts began."""
    parts = [
        source.filter(source["started"].between(start - _SLACK, end + timedelta(minutes=1))) for start, end in ranges
    ]
    return ibis.union(*parts) if len(parts) > 1 else parts[0]


def _with_minute(rows: Any) -> Any:
    """Add the minute in which a request finished: in numbers, which every backend can add."""
    seconds = rows["started"].epoch_seconds() + _ran_ms(rows) / 1000
    return rows.mutate(minute=(seconds / 60).floor().cast("int64"))


def _minutes(windows: Sequence[Window], spans: Sequence[datetime]) -> list[tuple[int, Spot]]:
    """Give each minute and spot of which some window holds a part; windows of one spot mostly overlap."""
    by_spot: dict[Spot, list[tuple[int, int]]] = {}
    for window, start in zip(windows, spans, strict=True):
        early = start - timedelta(seconds=UNTOLD_S)
        first, last = (int(at.replace(tzinfo=UTC).timestamp() // 60) for at in (early, window.end))
        by_spot.setdefault(window.spot, []).append((first, last))
    found: list[tuple[int, Spot]] = []
    for spot, parts in sorted(by_spot.items(), key=lambda pair: pair[0].name):
        done = -1
        for first, last in sorted(parts):
            found += [(minute, spot) for minute in range(max(first, done + 1), last + 1)]
            done = max(done, last)
    return found


def _window_table(store: Store, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    rows = [
        {
            "number": number,
            "at": each.spot.name,
            "w_start": start,
            "w_end": each.end,
            "w_tokens": each.tokens,
            "by": each.one,
        }
        for number, (each, start) in enumerate(zip(windows, spans, strict=True))
    ]
    schema = {
        "number": "int64", "at": "string", "w_start": "timestamp(6)", "w_end": "timestamp(6)", "w_tokens": "int64",
        "by": "int64",
    }  # fmt: skip
    return store.hold("windows", rows, schema)


def _in_windows(store: Store, finished: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    """Join rows with the windows that they may have finished in, without the answer's own.

    is_sure: on the very worker. A row whose duration is not logged may have run ``UNTOLD_S`` into a window.
    """
    table = _window_table(store, windows, spans)
    placed = finished.inner_join(store.ibis.table("spots_that_fit"), "spot")
    untold = ibis.ifelse(_believed(placed["duration_ms"]).isnull(), UNTOLD_S, 0).cast("int64").as_interval("s")
    joined = placed.mutate(latest=placed["finished"] + untold)
    joined = joined.inner_join(
        table,
        [joined["at"] == table["at"], joined["latest"] >= table["w_start"], joined["finished"] <= table["w_end"]],
    )
    joined = joined.filter((joined["one"] != joined["by"]).fill_null(True))
    # A row that says more than the pool holds says nothing of it.
    surely = joined["is_sure"] & _believed(joined["duration_ms"]).notnull() & (joined["held"] <= joined["w_tokens"])
    return joined.mutate(surely_held=ibis.ifelse(surely, joined["held"], 0))


def _held(store: Store, finished: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> dict[int, int]:
    joined = _in_windows(store, finished, windows, spans)
    sums = joined.group_by("number").aggregate(total=joined["surely_held"].sum())
    return {row["number"]: int(row["total"] or 0) for row in rows_of(sums)}


def _within(store: Store, finished: Any, windows: Sequence[Window], spans: Sequence[datetime]) -> Any:
    """Leave, of each window, the rows after which less than the pool is sure to have finished."""
    joined = _in_windows(store, finished, windows, spans)
    back = ibis.window(
        group_by="number",
        order_by=[joined["latest"].desc(), joined["source_file"], joined["source_line"]],
        following=0,
    )
    joined = joined.mutate(after=joined["surely_held"].sum().over(back) - joined["surely_held"])
    near = joined.filter((joined["w_tokens"] == 0) | (joined["after"] < joined["w_tokens"]))
    return store.keep("victims", near.group_by(*_CARRIED).aggregate(victim_of=near["number"].nunique()))
