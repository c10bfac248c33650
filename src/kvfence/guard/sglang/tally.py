"""What the guard decided, counted where SGLang's own metrics are, and one log line for each refusal.

No prompt, token id or key is in either.
"""

import logging
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from kvfence.guard.messages import VERSION
from kvfence.guard.settings import GuardSettings
from kvfence.protocol.guards import Decision

logger = logging.getLogger("kvfence.guard")

SAY_AGAIN_S = 1.0
"""Between two log lines of strangers."""


class Tally:
    """One process's counts."""

    def __init__(self, settings: GuardSettings, role: str, registry: CollectorRegistry) -> None:
        self._role = role
        self._said_s = float("-inf")
        self._decisions = Counter(
            "kvfence:guard_decisions", "What each guard answered.", ["role", "guard", "answer"], registry=registry
        )
        self._held = Gauge(
            "kvfence:guard_quarantined_pages",
            "Pages kept from re-use until nobody can write to them.",
            ["role"],
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._rebuilt = Counter(
            "kvfence:guard_sessions_rebuilt", "Receiving sessions made new.", ["role"], registry=registry
        )
        self._checked = Counter(
            "kvfence:guard_pages_checked", "Pages compared with their grants.", ["role"], registry=registry
        )
        active = Gauge(
            "kvfence:guard_active",
            "1: the guard is on.",
            ["role", "mode", "key_id", "version"],
            multiprocess_mode="max",
            registry=registry,
        )
        active.labels(role, settings.mode, settings.key.id, str(VERSION)).set(1)

    def note(self, decisions: Iterable[Decision]) -> None:
        """Count decisions."""
        for decision in decisions:
            self._decisions.labels(self._role, decision.guard, decision.answer).inc()

    def refuse(self, room: int, guard: str, reason: str, *, enforced: bool) -> None:
        """Count and say that one hand-off was refused, or would have been."""
        self._decisions.labels(self._role, guard, "refuse" if enforced else "observed").inc()
        word = "refused" if enforced else "would refuse"
        logger.warning("kvfence %s room=%s guard=%s: %s", word, room, guard, reason)

    def warn(self, guard: str, reason: str) -> None:
        """Count and say what holds for no one hand-off, and refuses none by itself."""
        self._decisions.labels(self._role, guard, "warn").inc()
        logger.warning("kvfence warns guard=%s: %s", guard, reason)

    def stranger(self) -> None:
        """Count a message that is not by a holder of the key; whoever reaches the port can send many: few are said."""
        self._decisions.labels(self._role, "peer-is-current", "refuse").inc()
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            logger.warning("kvfence refused guard=peer-is-current: messages that are not by a holder of the key")

    def held(self, num_pages: int) -> None:
        """Say how many pages are in quarantine."""
        self._held.labels(self._role).set(num_pages)

    def rebuilt(self) -> None:
        """Count a receiving session made new."""
        self._rebuilt.labels(self._role).inc()

    def checked(self, num_pages: int) -> None:
        """Count comparisons of pages with their grants."""
        self._checked.labels(self._role).inc(num_pages)
