"""Requests that are only counted and yet cannot be told clear, by the hours and places in which they were counted.

No known pool served them, or affected answers may have read their pages and nobody looked. The log is not passed over
again: where an hour's counts do not tell, the whole hour is UNKNOWN. Read ``tally.py`` first.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import ibis

from kvfence.scope.classes import Judgement, class_of, intervals_of
from kvfence.scope.relation import Class
from kvfence.scope.store import Store, number_of
from kvfence.scope.survey import TIME_MIN, never_ran
from kvfence.scope.tally import shaped
from kvfence.scope.values import Value
from kvfence.scope.victims import Unsought

BEGINNING, END = datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("9999-12-31")
_PLACE = ("model", "replica", "worker")
_SCHEMA = {"m": "string", "r": "string", "w": "string", "s": "timestamp(6)", "e": "timestamp(6)"}
_PLAIN = ("fits", "body_fits")


def move_uncovered(
    store: Store, reasons: dict[str, int], judgement: Judgement, looked_at: Sequence[Any], now: datetime
) -> int:
    """Count short requests as UNKNOWN where neither the history nor ``--pool`` says which pool served them.

    looked_at: rows that were judged one by one.
    """
    if judgement.pool is not None or not judgement.history.given:
        return 0
    known = [
        {"m": each.model, "r": each.replica, "w": worker, "s": each.start or BEGINNING, "e": each.end or END}
        for each in intervals_of(judgement)
        if each.pool is not None
        for worker in each.workers or (None,)
    ]
    hours = _uncovered(store, known, now)
    moved = number_of(hours["requests"].sum())
    for rows in looked_at:
        there = _keyed(rows.mutate(hour=rows["started"].truncate("h"))).semi_join(hours, "key")
        moved -= number_of(there.count())
    return _move(reasons, moved, "no_pool")


def _uncovered(store: Store, known: list[dict[str, Any]], now: datetime) -> Any:
    """Leave the hours and places of which some part is covered by no interval with a pool."""
    covered = store.hold("covered", known, _SCHEMA)
    borders = sorted({BEGINNING, END, *(each[name] for each in known for name in ("s", "e"))})
    parts = [{"lo": lo, "hi": hi} for lo, hi in pairwise(borders)]
    table = store.hold("parts_of_history", parts, {"lo": "timestamp(6)", "hi": "timestamp(6)"})
    places = _keyed(store.ibis.table("places_raw"))
    believed = (places["first"] >= TIME_MIN) & (places["last"] <= now)
    places = places.mutate(
        since=ibis.ifelse(believed.fill_null(False), places["first"], BEGINNING),
        until=ibis.ifelse(believed.fill_null(False), places["last"], END - timedelta(days=1)),
    )
    in_parts = places.inner_join(table, [table["lo"] <= places["until"], table["hi"] > places["since"]])
    match = [
        covered[short].isnull() | in_parts[name].isnull() | (covered[short] == in_parts[name])
        for short, name in zip("mrw", _PLACE, strict=True)
    ]
    match += [covered["s"] <= in_parts["lo"], covered["e"] >= in_parts["hi"]]
    bare = in_parts.anti_join(covered, match)
    return store.keep("uncovered", bare.group_by("key").aggregate(requests=bare["requests"].max()))


def _keyed(rows: Any) -> Any:
    """Add one text that names the hour and the place."""
    key: Value = rows["hour"].cast("string").fill_null("")
    for name in _PLACE:
        key = key + "\x1f" + rows[name].fill_null("\x1f")
    return rows.mutate(key=key)


def mark_unsought(store: Store, classified: Any, unsought: Unsought) -> Any:
    """Make UNKNOWN what was judged CLEAR and may have been read by an answer whose victims were not looked for."""
    near = classified["started"].isnull() | _between(classified["started"], unsought.start, unsought.end)
    clear = (classified["class"] == str(Class.CLEAR)) & ~never_ran(classified) & near
    marked = classified.mutate(
        reason=ibis.ifelse(clear, "victims_not_sought", classified["reason"]),
        would_be=ibis.ifelse(clear, str(Class.UNKNOWN), classified["would_be"]),
    )
    return store.keep("with_unsought", shaped(marked.mutate(**{"class": class_of(marked["reason"])})))


def move_unsought(store: Store, reasons: dict[str, int], unsought: Unsought, looked_at: Sequence[Any]) -> int:
    """Count as UNKNOWN, by whole hours, what was only counted and may have been read by such an answer."""
    start = None if unsought.start is None else unsought.start.replace(minute=0, second=0, microsecond=0)
    places = store.ibis.table("places_raw")
    near = places.filter(places["hour"].isnull() | _between(places["hour"], start, unsought.end))
    moved = number_of(near["requests"].sum())
    for rows in looked_at:
        hour = rows["started"].truncate("h")
        moved -= number_of(rows.filter(hour.isnull() | _between(hour, start, unsought.end)).count())
    return _move(reasons, moved, "victims_not_sought")


def _between(time: Value, start: datetime | None, end: datetime | None) -> Value:
    return ibis.literal(True) if start is None or end is None else time.between(start, end)


def _move(reasons: dict[str, int], moved: int, to: str) -> int:
    """Take requests out of the plainly clear ones; no more than there are."""
    rest = max(0, moved)
    for reason in _PLAIN:
        some = min(rest, reasons.get(reason, 0))
        if some:
            reasons[reason] -= some
            reasons[to] = reasons.get(to, 0) + some
        rest -= some
    return max(0, moved) - rest
