"""Its counts, and how they are shown."""

from typing import Any


class NixlKVConnectorStats:
    """Lists of what happened."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data = data or {"transfer_duration": [], "num_notifications_after_expiry": []}

    def is_empty(self) -> bool:
        """Is there nothing?"""
        return not any(self.data.values())

    def aggregate(self, other: Any) -> Any:
        """Add another's."""
        for name, values in other.data.items():
            self.data[name].extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Give one line's worth."""
        return {"Num successful transfers": len(self.data["transfer_duration"])}


class NixlPromMetrics:
    """What stands on the metrics page."""

    def __init__(self, config: Any, types: dict[Any, Any], labelnames: list[str], values: dict[int, list[Any]]) -> None:
        from prometheus_client import Counter, Gauge

        self._counter_cls, self._gauge_cls = types[Counter], types[Gauge]
        self._labelnames, self.per_engine_labelvalues = labelnames, values
        self.seen: list[Any] = []

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's."""
        self.seen.append(transfer_stats_data["transfer_duration"])
