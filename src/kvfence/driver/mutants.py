"""Known mistakes of engines, in what reaches a node: rewriters of events and wrong hints, never a branch inside it.

For ``incident``, ``range`` and the tests. Production cannot import this module.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from kvfence.driver.loop import Rewrite
from kvfence.driver.prefix import PrefixIndex
from kvfence.protocol.admission import Capacity, prefill_fit
from kvfence.protocol.events import BatchEnded, Event, FloorMoved, Received, Resend
from kvfence.protocol.messages import Commit, Dispatch, EndReason, Failed

INCIDENT_LACKS = (
    "fits@gateway",
    "refusal-is-final",
    "count-matches",
    "stamp-at-adopt",
    "stamp-at-read",
    "digest-matches",
)
"""The guards that the incident's engine lacked."""


def placeholder_on_refusal(capacity: Capacity) -> Rewrite:
    """Keep the refusal of a prompt that does not fit for later, and queue one token in its place.

    Source: the incident's scheduler. On one machine the placeholder drains and the client gets the error; in
    disaggregated mode its one page is transferred, and decode reads all the pages it reserved.
    """

    def rewrite(event: Event) -> Event:
        if not isinstance(event, Received) or not isinstance(event.envelope.message, Dispatch):
            return event
        dispatch = event.envelope.message
        if prefill_fit(capacity, dispatch.num_tokens).holds:
            return event
        placeholder = replace(event.envelope, message=replace(dispatch, num_tokens=1))
        return Received(placeholder, EndReason.DOES_NOT_FIT)

    return rewrite


def lose_the_tail(capacity: Capacity) -> Rewrite:
    """Compute and send three quarters of a prompt that fills more than half of prefill's pool, and call it whole.

    Decode has reserved pages for all of it: the last ones hold what was there before.
    """

    def rewrite(event: Event) -> Event:
        if not isinstance(event, Received) or not isinstance(event.envelope.message, Dispatch):
            return event
        dispatch = event.envelope.message
        num_pages = capacity.num_pages(dispatch.num_tokens)
        if num_pages * 2 <= capacity.prefill_pages or not prefill_fit(capacity, dispatch.num_tokens).holds:
            return event
        kept = replace(dispatch, num_tokens=num_pages * 3 // 4 * capacity.page_size)
        return replace(event, envelope=replace(event.envelope, message=kept))

    return rewrite


def refusal_as_end(event: Event) -> Event:
    """Take prefill's refusal of a prompt that does not fit for the ordinary end of an answer."""
    if not isinstance(event, Received) or not isinstance(event.envelope.message, Failed):
        return event
    failed = event.envelope.message
    if failed.reason is not EndReason.DOES_NOT_FIT:
        return event
    return replace(event, envelope=replace(event.envelope, message=replace(failed, reason=EndReason.STOP)))


def silent_refusal(capacity: Capacity) -> Rewrite:
    """Retire a dispatch whose prompt does not fit without a word to decode.

    Source: SGLang 0.5.20 to 0.5.23, where the sender's abort is local and decode waits for its own time-out.
    """

    def rewrite(event: Event) -> Event:
        if not isinstance(event, Received) or not isinstance(event.envelope.message, Dispatch):
            return event
        dispatch = event.envelope.message
        return event if prefill_fit(capacity, dispatch.num_tokens).holds else Resend(dispatch.attempt)

    return rewrite


class UnsaltedIndex(PrefixIndex):
    """An index that forgets whose prompt it looks for: equal prompts of two tenants have equal keys."""

    def keys(self, salt: str, blocks: Iterable[bytes]) -> list[bytes]:
        """Give the keys of a prompt's full pages, whoever asks."""
        del salt
        return super().keys("", blocks)


def failed_post_counts(event: Event) -> Event:
    """Count a post that failed as one that landed.

    Source: completions that are counted and not proven (M12).
    """
    if isinstance(event, BatchEnded) and not event.success:
        return replace(event, success=True)
    return event


def commit_ignored(event: Event) -> Event:
    """Never hear that decode took the pages: the completion is filtered, or goes to another id (M14)."""
    if isinstance(event, Received) and isinstance(event.envelope.message, Commit):
        return FloorMoved(event.envelope.sender, 0)  # which changes nothing
    return event
