"""Counts by day, model, replica and account, asked of the database as one grouped question each."""

from collections.abc import Callable
from typing import Any

import ibis
from msgspec import Struct, structs

from kvfence.scope.relation import Class, Relation
from kvfence.scope.report.document import Tally
from kvfence.scope.store import rows_of

FIELD_OF_CLASS = {
    Class.AFFECTED: "affected",
    Class.LIKELY: "likely",
    Class.POSSIBLE_VICTIM: "possible_victims",
    Class.EXCLUDED: "excluded",
    Class.UNKNOWN: "unknown",
}
"""The class's name in a document; CLEAR is what is left."""


class Counted(Struct, frozen=True):
    """A tally and the longest prompt of one day, model, replica or account."""

    tally: Tally
    longest: int | None = None


def day_of(moment: Any) -> Any:
    """Give the UTC day of a column of times."""
    return moment.strftime("%Y-%m-%d")


def by_day(relation: Relation) -> dict[str | None, Counted]:
    """Count by the UTC day a request started on."""
    return _counted(relation, lambda table, time: day_of(table[time]))


def by_model(relation: Relation) -> dict[str | None, Counted]:
    """Count by model."""
    return _counted(relation, lambda table, _: table["model"])


def by_replica(relation: Relation) -> dict[str | None, Counted]:
    """Count by replica, or by decode worker where no replica was logged."""
    return _counted(relation, lambda table, _: ibis.coalesce(table["replica"], table["worker"]))


def by_account(relation: Relation) -> dict[str | None, Tally]:
    """Count what is not CLEAR, by account."""
    found = relation.classified.filter(relation.classified["class"] != str(Class.CLEAR))
    return {name: structs.replace(Tally(), **fields) for name, fields in _classes(found, found["account"]).items()}


def _counted(relation: Relation, key: Callable[[Any, str], Any]) -> dict[str | None, Counted]:
    """Join the totals of all traffic with the classes; in the order of the names, no name last."""
    places, found = relation.places, relation.classified
    totals = rows_of(
        places.group_by(name=key(places, "hour")).agg(
            requests=places["requests"].sum(),
            long=places["long_requests"].sum(),
            longest=places["longest_prompt"].max(),
        )
    )
    classes = _classes(found.filter(found["class"] != str(Class.CLEAR)), key(found, "started"))
    made = {
        row["name"]: Counted(
            Tally(requests=int(row["requests"]), long=int(row["long"]), **classes.pop(row["name"], {})), row["longest"]
        )
        for row in totals
    }
    made |= {name: Counted(Tally(**fields)) for name, fields in classes.items()}
    return dict(sorted(made.items(), key=lambda item: (item[0] is None, item[0] or "")))


def _classes(found: Any, key: Any) -> dict[str | None, dict[str, int]]:
    both = ((found["class"] == str(Class.POSSIBLE_VICTIM)) & found["besides"].notnull()).sum()
    grouped = found.group_by(name=key, klass=found["class"]).agg(n=found.count(), both=both)
    classes: dict[str | None, dict[str, int]] = {}
    for row in rows_of(grouped):
        fields = classes.setdefault(row["name"], {})
        fields[FIELD_OF_CLASS[Class(row["klass"])]] = int(row["n"])
        if row["both"]:
            fields["possible_victims_also_unknown"] = int(row["both"])
    return classes
