"""What decode expects of a hand-off, what prefill promised of it, and whether the two agree: the guards' decisions.

Free of engines. An engine's adapter says what it offered and what arrived; the answer is a list of decisions, the
first refused one being the reason. Not for: what follows from a refusal (the adapter).
"""

from collections.abc import Callable

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.guard.messages import Promise
from kvfence.protocol.guards import Decision
from kvfence.protocol.watched import Promised


class Expected(Struct, frozen=True):
    """What decode reserved and for whom."""

    attempt: AttemptId
    num_tokens: int
    num_pages: int
    layout: str


class Limits(Struct, frozen=True):
    """How many tokens a role holds at once, of all requests and of one; 0 where that is not known."""

    pool_tokens: int
    context_tokens: int


def fits_context(limits: Limits) -> str:
    """Say that a role's pool does not hold the longest prompt which its context lets in; empty where it does."""
    pool, context = limits.pool_tokens, limits.context_tokens
    if not pool or pool >= context:
        return ""
    return f"a pool of {pool} tokens does not hold a prompt of the context's {context}: longer ones are refused"


def compare_limits(own: Limits, peer: Limits) -> tuple[str, ...]:
    """Say where the other role of a pair holds less than this one lets in, or lets in something else."""
    mine, theirs = own.context_tokens, peer.context_tokens
    found = []
    if mine and theirs and mine != theirs:
        found.append(f"the pair's contexts differ: {mine} tokens here, {theirs} there")
    if peer.pool_tokens and peer.pool_tokens < max(mine, theirs):
        found.append(f"the other role's pool of {peer.pool_tokens} tokens is below the context of {max(mine, theirs)}")
    return tuple(found)


def as_promised(promise: Promise) -> Promised:
    """Give what a trace says of a promise."""
    return Promised(promise.attempt, promise.num_tokens, promise.num_pages, promise.layout, promise.digest)


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
