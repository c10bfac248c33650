"""What a rule says of a deployment, and how much it matters.

Not for: what an engine does with a request (``request.py``), exit codes (``cli/exits.py``).
"""

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """Four answers. UNKNOWN is an answer of its own: it is never read as PASS."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


_FROM_WORST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.NOT_APPLICABLE)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Join verdicts: FAIL wins over UNKNOWN, UNKNOWN over PASS, PASS over NOT_APPLICABLE; none gives the last."""
    given = set(verdicts)
    return next((verdict for verdict in _FROM_WORST if verdict in given), Verdict.NOT_APPLICABLE)


class Severity(StrEnum):
    """How much a FAIL matters, from a note to another tenant's text in an answer."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Give the place from the least, 0, to the worst."""
        return list(Severity).index(self)
