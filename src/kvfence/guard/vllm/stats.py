"""What the guard decided, carried by vLLM's own counts from its processes to its metrics page.

Imported inside vLLM alone. No prompt, token id or key is in it.
"""

from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import (  # type: ignore[import-not-found, unused-ignore]
    NixlKVConnectorStats,
    NixlPromMetrics,
)

from kvfence.guard.messages import VERSION
from kvfence.guard.settings import GuardSettings
from kvfence.guard.vllm.tally import HELD

FIELD = "kvfence"
PREFIX = "kvfence:guard_"


class FenceStats(NixlKVConnectorStats):  # type: ignore[misc, unused-ignore]
    """NIXL's counts, and the guard's in one field: by ``role guard answer`` how often."""

    @staticmethod
    def of(counts: dict[str, int]) -> "FenceStats":
        """Give the guard's counts beside none of NIXL's."""
        return FenceStats(data={**NixlKVConnectorStats().data, FIELD: counts})

    def counts(self) -> dict[str, int]:
        """Give the guard's counts."""
        found: dict[str, int] = self.data.setdefault(FIELD, {})
        return found

    def is_empty(self) -> bool:
        """Is there nothing to carry?"""
        return not self.counts() and self._rest().is_empty()

    def aggregate(self, other: Any) -> Any:
        """Add another's."""
        mine = self.counts()
        for name, number in other.data.get(FIELD, {}).items():
            mine[name] = mine.get(name, 0) + number
        rest = self._rest()
        theirs = NixlKVConnectorStats(data={name: each for name, each in other.data.items() if name != FIELD})
        rest.aggregate(theirs)
        self.data = {**rest.data, FIELD: mine}
        return self

    def reduce(self) -> dict[str, int | float]:
        """Give one line's worth."""
        rest: dict[str, int | float] = self._rest().reduce()
        refused = sum(number for name, number in self.counts().items() if name.endswith((" refuse", " observed")))
        return {**rest, "kvfence refused": refused}

    def _rest(self) -> Any:
        return NixlKVConnectorStats(data={name: each for name, each in self.data.items() if name != FIELD})


class FenceMetrics(NixlPromMetrics):  # type: ignore[misc, unused-ignore]
    """NIXL's metrics, and the guard's under the names that both engines' guards have."""

    def __init__(self, settings: GuardSettings, role: str, *given: Any) -> None:
        super().__init__(*given)
        _forget_former()
        names = list(self._labelnames)
        self._decisions: Counter = self._counter_cls(
            name=f"{PREFIX}decisions",
            documentation="What each guard answered.",
            labelnames=[*names, "role", "guard", "answer"],
        )
        self._held: Gauge = self._gauge_cls(
            name=f"{PREFIX}quarantined_pages",
            documentation="Blocks kept from re-use until a restart.",
            labelnames=[*names, "role"],
        )
        active: Gauge = self._gauge_cls(
            name=f"{PREFIX}active",
            documentation="1: the guard is on.",
            labelnames=[*names, "role", "mode", "key_id", "version"],
        )
        self._role = role
        for values in self.per_engine_labelvalues.values():
            active.labels(*values, role, str(settings.mode), settings.key.id, str(VERSION)).set(1)
            self._held.labels(*values, role).set(0)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's counts."""
        super().observe(transfer_stats_data, engine_idx)
        values = self.per_engine_labelvalues[engine_idx]
        for name, number in transfer_stats_data.get(FIELD, {}).items():
            if name == HELD:
                self._held.labels(*values, self._role).inc(number)
            else:
                self._decisions.labels(*values, *name.split(" ")).inc(number)


def _forget_former() -> None:
    """A process that makes another engine still has the former one's counts: vLLM drops its own then, and so do we."""
    for collector in tuple(REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith(PREFIX):
            REGISTRY.unregister(collector)
