"""Adds up: classes of all requests, those kept one by one and the plainly clear ones that are only counted.

A request is counted once. Read ``relate.py`` first.
"""

from collections.abc import Mapping
from typing import Any

import ibis

from kvfence.scope.classes import class_of
from kvfence.scope.exclusions import Exclusions
from kvfence.scope.relation import CLASS_OF_REASON, CLASSIFIED_COLUMNS, Class
from kvfence.scope.store import Store, number_of, rows_of
from kvfence.scope.survey import SAYS_NOTHING, Bounds, Survey, clean, is_lost, never_ran, plain_reason
from kvfence.scope.values import Value

_EXCLUDED_AS = {
    str(Class.AFFECTED): "excluded_affected",
    str(Class.LIKELY): "excluded_likely",
    str(Class.POSSIBLE_VICTIM): "excluded_victim",
    str(Class.UNKNOWN): "excluded_unknown",
}


@ibis.udf.scalar.builtin(  # type: ignore[untyped-decorator]
    name="hash", signature=(("string", "string", "timestamp(6)", "int64"), "uint64")
)
def _hash(request_id: Value, account: Value, started: Value, tokens: Value) -> Value: ...


_NOTHING_CHARS_MAX = max(len(text) for text in SAYS_NOTHING)
_ALIKE = ("request_id", "account", "started", "prompt_tokens")


def by_reason(rows: Any) -> dict[str, int]:
    """Count rows by their reason; rows without one are not counted."""
    counted = rows.filter(rows["reason"].notnull()).group_by("reason").aggregate(rows=lambda t: t.count())
    return {row["reason"]: row["rows"] for row in rows_of(counted)}


def by_class(reasons: Mapping[str, int]) -> dict[str, int]:
    """Sum counts by reason to counts by class; every class is there."""
    found = {str(each): 0 for each in Class}
    for reason, count in reasons.items():
        found[str(CLASS_OF_REASON[reason])] += count
    return found


def excluded(store: Store, judged: Any, exclusions: Exclusions) -> tuple[Any, int]:
    """Take what is on the lists of exclusions out of its class, which is kept as ``would_be``.

    A request's id alone excludes nothing where several accounts have it. Returns the rows, and how many it kept in.
    """
    judged = judged.mutate(would_be=judged["class"])
    if not exclusions.accounts and not exclusions.requests:
        return judged, 0
    accounts = _list(store, "excluded_accounts", exclusions.accounts)
    requests = _list(store, "excluded_requests", exclusions.requests)
    by_id = judged["request_id"].isin(requests["name"])
    of_account = (judged["account"] + "/" + judged["request_id"]).isin(requests["name"])
    named = judged["account"].isin(accounts["name"]) | of_account
    bearers = judged["account"].fill_null("").nunique().over(ibis.window(group_by="request_id"))
    judged = judged.mutate(by_id=by_id.fill_null(False), named=named.fill_null(False), bearers=bearers)
    judged = judged.mutate(listed=judged["named"] | (judged["by_id"] & (judged["bearers"] == 1)))
    instead = ibis.cases(
        *((judged["would_be"] == found, code) for found, code in _EXCLUDED_AS.items()), else_=judged["reason"]
    )
    judged = judged.mutate(reason=ibis.ifelse(judged["listed"], instead, judged["reason"]))
    judged = store.keep("with_exclusions", judged.mutate(**{"class": class_of(judged["reason"])}))
    spared = judged["by_id"] & ~judged["listed"] & (judged["would_be"] != str(Class.CLEAR))
    return judged.drop("by_id", "named", "bearers", "listed"), number_of(judged.filter(spared).count())


def _list(store: Store, name: str, entries: tuple[str, ...]) -> Any:
    return store.hold(name, [{"name": entry} for entry in entries], {"name": "string"})


def with_victims(store: Store, one_each: Any, found: Any, bounds: Bounds) -> tuple[Any, dict[str, int]]:
    """Give the requests with those whose pages could have been read; and, by reason, rows that were only counted."""
    hits = found.filter(found["one"].notnull()).group_by("one").aggregate(hits=found["victim_of"].max())
    known = one_each.left_join(hits, "one")
    known = known.drop("one_right").mutate(victim_of=known["hits"].fill_null(0))
    untold = known["class"] == str(Class.UNKNOWN)
    is_victim = (known["victim_of"] > 0) & ((known["class"] == str(Class.CLEAR)) | untold)
    is_victim = is_victim & ~never_ran(known)
    known = known.mutate(
        besides=ibis.ifelse(is_victim & untold, known["reason"], ibis.null("string")),
        reason=ibis.ifelse(is_victim, "in_read_window", known["reason"]),
        would_be=ibis.ifelse(is_victim, str(Class.POSSIBLE_VICTIM), known["would_be"]),
    )
    known = known.mutate(**{"class": class_of(known["reason"])})
    new = store.keep("new_victims", _each_once(found.filter(found["one"].isnull())))
    lost = ibis.ifelse(is_lost(new, bounds), "no_length", ibis.null("string"))
    less = by_reason(new.select(reason=ibis.coalesce(plain_reason(new, bounds), lost)))
    added = new.mutate(
        reason=ibis.literal("in_read_window"),
        would_be=ibis.literal(str(Class.POSSIBLE_VICTIM)),
        besides=lost,
        **{"class": ibis.literal(str(Class.POSSIBLE_VICTIM))},
    )
    return store.keep("with_victims", ibis.union(shaped(known), shaped(added))), less


def _each_once(found: Any) -> Any:
    """Name the rows, and leave of those that say the same one; a row without an id is like no other."""
    line = found["source_line"].cast("string")
    where = found["source_file"] + ":" + ibis.coalesce(line, "row " + ibis.row_number().cast("string"))
    named = clean(found["request_id"])
    rows = found.mutate(
        request_id=ibis.coalesce(named, where),
        ident=ibis.ifelse(named.isnull(), where, found["request_id"]),
        **{name: clean(found[name]) for name in ("account", "model", "replica", "worker", "release")},
    )
    order = ibis.window(
        group_by=["ident", "account", "started", "prompt_tokens"], order_by=["source_file", "source_line"]
    )
    each = rows.mutate(place=ibis.row_number().over(order))
    return each.filter(each["place"] == 0).drop("place", "ident")


def shaped(rows: Any) -> Any:
    """Give rows the columns of ``CLASSIFIED_COLUMNS``, null where they have none."""
    columns = {
        name: (rows[name] if name in rows.columns else ibis.null(dtype)).cast(dtype)
        for name, dtype in CLASSIFIED_COLUMNS.items()
    }
    if "tokens" in rows.columns:
        columns["prompt_tokens"] = ibis.coalesce(rows["tokens"], rows["prompt_tokens"])
    return rows.select(**columns)


def plain_duplicates(store: Store, source: Any, taken: Any, bounds: Bounds) -> int:
    """Count the plainly clear rows, not taken out, that say what another one of them says."""
    name = source["request_id"]
    named = ~((name.length() <= _NOTHING_CHARS_MAX) & name.lower().isin(SAYS_NOTHING))
    rows = source.filter(source["prompt_tokens"].between(2, bounds.long - 1) & named.fill_null(False))
    twins = taken.filter(taken["request_id"].notnull()).select("request_id").distinct()
    rows = rows.anti_join(twins, "request_id")
    counted = rows.aggregate(rows=rows.count(), distinct=_hash(*(rows[name] for name in _ALIKE)).nunique())
    with store.watching("comparing what is plainly clear"):
        row = rows_of(counted)[0]
    return int(row["rows"] or 0) - int(row["distinct"] or 0)


def add_plain(reasons: dict[str, int], seen: Survey, taken: Mapping[str, int], less: Mapping[str, int]) -> None:
    """Add the plainly clear rows that were not taken out."""
    for reason, count in seen.plain.items():
        rest = count - taken.get(reason, 0) - less.get(reason, 0)
        reasons[reason] = reasons.get(reason, 0) + max(rest, 0)
    if seen.lost:
        reasons["no_length"] = reasons.get("no_length", 0) + max(seen.lost - less.get("no_length", 0), 0)
