"""What the guard decided in the scheduler's process: counts that vLLM carries away, and one log line for each refusal.

No prompt, token id or key is in either.
"""

import logging
from collections.abc import Iterable

from kvfence.protocol.guards import Decision

logger = logging.getLogger("vllm.kvfence.guard")
"""Below vLLM's own name, so that its handlers print it."""

HELD = "held"
"""Among the counts: blocks kept out of the pool."""


class Tally:
    """One scheduler's counts since vLLM took them last, by ``role guard answer``."""

    def __init__(self, role: str, *, enforces: bool) -> None:
        self._role = role
        self._enforces = enforces
        self._counts: dict[str, int] = {}

    def note(self, decisions: Iterable[Decision]) -> None:
        """Count decisions."""
        for decision in decisions:
            self._add(f"{self._role} {decision.guard} {decision.answer}", 1)

    def passed(self, guard: str) -> None:
        """Count one decision that held."""
        self._add(f"{self._role} {guard} pass", 1)

    def refuse(self, request: str, guard: str, reason: str) -> None:
        """Count and say that one hand-off was refused, or would have been."""
        self._add(f"{self._role} {guard} {'refuse' if self._enforces else 'observed'}", 1)
        word = "refused" if self._enforces else "would refuse"
        logger.warning("kvfence %s request=%s guard=%s: %s", word, request, guard, reason)

    def warn(self, guard: str, reason: str) -> None:
        """Count and say what holds for no one hand-off, and refuses none by itself."""
        self._add(f"{self._role} {guard} warn", 1)
        logger.warning("kvfence warns guard=%s: %s", guard, reason)

    def late(self, number: int) -> None:
        """Count and say that decodes read blocks after their lease: refused is nothing here, decode compares bytes."""
        self._add(f"{self._role} hold-source late", number)
        logger.warning("kvfence late guard=hold-source: %d reads ended after their lease; decode judges them", number)

    def hold(self, num_blocks: int) -> None:
        """Say how many blocks more are in quarantine."""
        self._add(HELD, num_blocks)

    def take(self) -> dict[str, int]:
        """Give what has been counted since the last time."""
        counts, self._counts = self._counts, {}
        return counts

    def _add(self, name: str, number: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + number
