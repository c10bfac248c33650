"""What decode expects of a hand-off, what prefill promised of it, and whether the two agree: the guards' decisions.

Free of engines. An engine's adapter says what it offered and what arrived; the answer is a list of decisions, the
first refused one being the reason. Not for: what follows from a refusal (the adapter).
"""

from collections.abc import Callable

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.guard.messages import Promise
from kvfence.protocol.guards import Decision


class Expected(Struct, frozen=True):
    """What decode reserved and for whom."""

    attempt: AttemptId
    num_tokens: int
    num_pages: int
    layout: str


class Verdict(Struct, frozen=True):
    """The decisions in the order asked, and why not, in words that hold no prompt; empty where all hold."""

    decisions: tuple[Decision, ...]
    reason: str = ""

    @property
    def holds(self) -> bool:
        """May the pages be adopted?"""
        return not self.reason


def verify(expected: Expected, promise: Promise | None, digest: Callable[[], str] | None, *, enforced: bool) -> Verdict:
    """Compare a promise with what was offered, and the bytes that landed with what was promised.

    ``digest`` reads the landed pages and is asked last, once everything cheaper agrees; None before they land.
    """
    decisions: list[Decision] = []

    def ask(guard: str, holds: bool) -> bool:
        decisions.append(Decision(guard, "decode", expected.attempt, holds, enforced, not enforced))
        return holds

    reason = _reason(expected, promise, digest, ask)
    return Verdict(tuple(decisions), reason)


def _reason(
    expected: Expected, promise: Promise | None, digest: Callable[[], str] | None, ask: Callable[[str, bool], bool]
) -> str:
    if not ask("stamp-at-adopt", promise is not None) or promise is None:
        return "prefill promised nothing for this attempt"
    if not ask("attempt-is-current", promise.attempt == expected.attempt):
        return "the promise is of another attempt"
    if not ask("layout-agrees", promise.layout == expected.layout):
        return f"prefill lays out its pages as {promise.layout}, decode as {expected.layout}"
    counts = (promise.num_tokens, promise.num_pages) == (expected.num_tokens, expected.num_pages)
    if not ask("count-matches", counts):
        return (
            f"prefill sent {promise.num_tokens} tokens in {promise.num_pages} pages, "
            f"decode reserved {expected.num_tokens} in {expected.num_pages}"
        )
    if digest is not None and not ask("digest-matches", promise.digest == digest()):
        return "the bytes that landed are not the bytes that prefill sent"
    return ""
