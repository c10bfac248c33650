"""Which rows may have been served by the decode worker of an affected answer, as far as each says where it was served.

A row that names another worker was not there. One that names none may have been wherever its replica, or its model, is
served: what it leaves out clears nobody. Read ``victims.py`` first.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from kvfence.scope.store import Store, rows_of
from kvfence.scope.survey import clean
from kvfence.scope.values import Value

PAIRS_MAX = 4_000_000
"""With more spots to compare, a row that names no worker counts as one that may have been anywhere."""
_BETWEEN = "\x1f"
PARTS = ("worker", "replica", "model")


class Spot(Struct, frozen=True):
    """Where a request was served, as it was logged."""

    worker: str | None = None
    replica: str | None = None
    model: str | None = None

    @property
    def name(self) -> str:
        """Give one text for all three."""
        return _BETWEEN.join(part or "" for part in (self.worker, self.replica, self.model))


def name_of(rows: Any) -> Value:
    """Give the name of each row's spot."""
    worker, replica, model = (clean(rows[part]).fill_null("") for part in PARTS)
    return worker + _BETWEEN + replica + _BETWEEN + model


def spots_that_fit(store: Store, places: Any, answered_at: Sequence[Spot]) -> Any:
    """Keep a table of all spots with the answers' spots that may be the same; is_sure: the very same worker."""
    found = rows_of(places.select(*PARTS).distinct())
    served_at = [Spot(*(row[part] for part in PARTS)) for row in found]
    spots = {spot.name: spot for spot in served_at}
    seen = places.filter(places["worker"].notnull() & places["replica"].notnull()).select("worker", "replica")
    pairs = [(row["worker"], row["replica"]) for row in rows_of(seen.distinct())]
    wanted = sorted(set(answered_at), key=lambda spot: spot.name)
    served, anywhere = Served(pairs), len(spots) * len(wanted) > PAIRS_MAX
    fitting = [
        {"spot": name, "at": at.name, "is_sure": spot.worker is not None and spot.worker == at.worker}
        for name, spot in sorted(spots.items())
        for at in wanted
        if (spot.worker == at.worker if spot.worker and at.worker else anywhere or served.may_be(spot, at))
    ]
    return store.hold("spots_that_fit", fitting, {"spot": "string", "at": "string", "is_sure": "boolean"})


class Served:
    """Which workers and replicas were seen together in the logs."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = set(pairs)
        self.replicas = {replica for _worker, replica in self.pairs}

    def may_be(self, one: Spot, other: Spot) -> bool:
        """Tell whether two spots may be one worker; at least one of them does not name it."""
        worker = one.worker or other.worker
        nameless = other if one.worker else one
        if worker and nameless.replica in self.replicas:
            return (worker, nameless.replica) in self.pairs
        if not worker and one.replica and other.replica:
            return one.replica == other.replica
        return one.model == other.model or None in (one.model, other.model)
