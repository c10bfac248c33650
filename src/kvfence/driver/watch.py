"""What follows from what a plug-in sees: which guards are asked, what they answer, and which properties break.

The plug-in takes each fact through it as it records, and a replay does so again: one text says what a hand-off inside
another's engine must be. It holds open hand-offs and their pages and changes in place; each engine process has its own.
Read ``protocol/watched.py`` first.

Not for: our own nodes (``protocol/step.py``), or acting on the answers (the plug-in does).
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.events import SessionRebuilt
from kvfence.protocol.guards import Decision, Place, Rules
from kvfence.protocol.messages import Drained, Unknown
from kvfence.protocol.watched import (
    Asked,
    AtDoor,
    Checked,
    Compared,
    Declined,
    Heard,
    Misread,
    Posted,
    Promised,
    Reserved,
    Returning,
    Said,
    Used,
    Watched,
)

WATCHED = frozenset(
    f"{guard}@{place}"
    for place, guards in {
        "prefill": ("refusal-is-final", "peer-is-current", "hold-source"),
        "decode": (
            "refusal-is-final",
            "attempt-is-current",
            "stamp-at-adopt",
            "layout-agrees",
            "count-matches",
            "digest-matches",
            "stamp-at-read",
            "drain-or-fence",
        ),
    }.items()
    for guard in guards
)
"""Every guard that a plug-in asks, at its place."""

OPEN_MAX = 65_536
"""Hand-offs that are remembered; beyond it the oldest is forgotten, and what is seen of it later cannot be taken."""

_SIGHT_OF: dict[type, str] = {
    AtDoor: "door",
    Reserved: "reserve",
    Posted: "post",
    Returning: "release",
    Checked: "pass",
    Misread: "pass",
}


class HandOffProperty(Struct, frozen=True):
    """What must hold of a hand-off in another's engine. ``sights``: what must be seen to tell."""

    name: str
    statement: str
    roles: tuple[Place, ...]
    sights: tuple[str, ...] = ()


_PREFILL: tuple[Place, ...] = ("prefill",)
_DECODE: tuple[Place, ...] = ("decode",)
_BOTH = _PREFILL + _DECODE

PROPERTIES: tuple[HandOffProperty, ...] = tuple(
    HandOffProperty(name, statement, roles, sights)
    for name, statement, roles, sights in (
        ("refused-is-not-run", "What was refused enters no queue.", _BOTH, ("door",)),
        ("adopted-is-verified", "The engine goes on with verified pages alone.", _DECODE, ()),
        ("granted-once", "No page is set aside while it may be used or written.", _DECODE, ("reserve", "release")),
        ("no-timer-frees", "No page goes back while it may be written.", _DECODE, ("release",)),
        ("emitted-is-clean", "A token leaves only when every page of its pass is its own.", _DECODE, ("pass",)),
        ("sent-is-asked", "Pages go to a decode that asked for them.", _PREFILL, ("post",)),
        ("promised-is-sent", "As many pages are promised as were sent.", _PREFILL, ("post",)),
        ("source-held", "No page goes back while a write may read it.", _PREFILL, ("post", "release")),
    )
)


def watching(*, enforced: bool) -> Rules:
    """Give a plug-in's rules: every guard obeyed, or every refusal counted and not obeyed."""
    return Rules() if enforced else Rules(observed=WATCHED)


class Seen(Struct, frozen=True):
    """What followed from one fact. ``broken``: the properties that it breaks."""

    decisions: tuple[Decision, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Did every guard hold, or was not obeyed?"""
        return all(decision.holds or not decision.enforced for decision in self.decisions)


class _HandOff(Struct):
    """One hand-off.

    ``quiet``: no write into its pages (decode) or from them (prefill) is outstanding. ``noisy``: somebody may write who
    will not say when he is done; a new session ends that.
    """

    pages: tuple[int, ...] = ()
    promise: Promised | None = None
    verified: bool = False
    num_posted: int = 0
    quiet: bool = True
    noisy: bool = False


class Watch:
    """One plug-in's knowledge of its engine process. ``unseen``: of ``SIGHTS``, what it cannot see."""

    def __init__(
        self, rules: Rules, role: Place, life: Incarnation, layout: str, unseen: frozenset[str] = frozenset()
    ) -> None:
        self._rules, self._role, self._life, self._layout, self._unseen = rules, role, life, layout, unseen
        self._handoffs: dict[AttemptId, _HandOff] = {}
        self._owners: dict[int, AttemptId] = {}
        self._decisions: list[Decision] = []
        self._broken: list[str] = []
        mine = (p for p in PROPERTIES if role in p.roles)
        self.untold = tuple(p.name for p in mine if not unseen.isdisjoint(p.sights))
        """The properties that this plug-in does not see enough for."""
        self._take = self._taken_at_prefill() if role == "prefill" else self._taken_at_decode()

    def _taken_at_prefill(self) -> "dict[type, Callable[[Any], None]]":
        return {
            AtDoor: self._at_door,
            Heard: self._heard_at_prefill,
            Posted: self._posted,
            Said: self._said_at_prefill,
            Returning: self._source_returns,
        }

    def _taken_at_decode(self) -> "dict[type, Callable[[Any], None]]":
        return {
            AtDoor: self._at_door,
            Reserved: self._reserved,
            Said: self._said_at_decode,
            Heard: self._heard_at_decode,
            Compared: self._compared,
            Used: self._used,
            Checked: self._checked,
            Misread: self._misread,
            Returning: self._returns,
            SessionRebuilt: self._rebuilt,
        }

    @property
    def num_open(self) -> int:
        """Hand-offs that are open."""
        return len(self._handoffs)

    def see(self, event: Watched) -> Seen:
        """Take one fact.

        Raises:
            LocalProtocolError: it cannot happen now, or this plug-in says that it does not see it; nothing changed.
        """
        self._decisions, self._broken = [], []
        kind = type(event)
        if _SIGHT_OF.get(kind) in self._unseen:
            raise LocalProtocolError(f"{kind.__name__} is not seen here, by this plug-in's own word")
        if kind not in self._take:
            raise LocalProtocolError(f"{kind.__name__} is no fact of {self._role}")
        self._take[kind](event)
        return Seen(tuple(self._decisions), tuple(name for name in self._broken if name not in self.untold))

    def _ask(self, guard: str, attempt: AttemptId | None, holds: bool) -> bool:
        """Record a guard's answer; False only where it does not hold and is obeyed."""
        enforced = self._rules.enforces(guard, self._role)
        observed = self._rules.observes(guard, self._role)
        self._decisions.append(Decision(guard, self._role, attempt, holds, enforced, observed))
        return holds or not enforced

    def _break_unless(self, name: str, holds: bool) -> None:
        if not holds:
            self._broken.append(name)

    def _known(self, attempt: AttemptId) -> _HandOff:
        handoff = self._handoffs.get(attempt)
        if handoff is None:
            raise LocalProtocolError(f"no hand-off of attempt {attempt} is open")
        return handoff

    def _begin(self, attempt: AttemptId, pages: tuple[int, ...] = ()) -> _HandOff:
        handoff = self._handoffs[attempt] = _HandOff(pages)
        self._owners.update(dict.fromkeys(pages, attempt))
        while len(self._handoffs) > OPEN_MAX:
            self._close(next(iter(self._handoffs)))
        return handoff

    def _close(self, attempt: AttemptId) -> None:
        for page in self._handoffs.pop(attempt).pages:
            if self._owners.get(page) == attempt:
                del self._owners[page]

    def _at_door(self, event: AtDoor) -> None:
        enters = self._ask("refusal-is-final", event.attempt, not event.refused)
        self._break_unless("refused-is-not-run", not (event.refused and enters))

    # ---- prefill

    def _heard_at_prefill(self, event: Heard) -> None:
        if isinstance(event.word, Asked):
            if event.word.attempt in self._handoffs:
                raise LocalProtocolError(f"attempt {event.word.attempt} was asked for before")
            self._begin(event.word.attempt)

    def _posted(self, event: Posted) -> None:
        handoff = self._handoffs.get(event.attempt) if event.attempt is not None else None
        if not self._ask("peer-is-current", event.attempt, handoff is not None):
            return
        self._break_unless("sent-is-asked", handoff is not None)
        if handoff is not None:
            handoff.num_posted += event.num_pages
            handoff.quiet = False

    def _said_at_prefill(self, event: Said) -> None:
        word = event.word
        handoff = self._handoffs.get(word.attempt)
        if isinstance(word, Promised):
            handoff = handoff or self._begin(word.attempt)
            self._break_unless("promised-is-sent", word.num_pages == handoff.num_posted)
            handoff.quiet = True
            if "release" in self._unseen:
                self._close(word.attempt)
        elif isinstance(word, Drained | Declined) and handoff is not None:
            handoff.quiet = True

    def _source_returns(self, event: Returning) -> None:
        handoff = self._known(event.attempt)
        if self._ask("hold-source", event.attempt, handoff.quiet):
            self._break_unless("source-held", handoff.quiet)
            self._close(event.attempt)

    # ---- decode

    def _reserved(self, event: Reserved) -> None:
        if event.attempt in self._handoffs:
            raise LocalProtocolError(f"pages for attempt {event.attempt} were set aside before")
        own = frozenset(event.pages)
        self._break_unless("granted-once", len(own) == len(event.pages) and self._owners.keys().isdisjoint(own))
        self._begin(event.attempt, event.pages)

    def _said_at_decode(self, event: Said) -> None:
        if isinstance(event.word, Asked):
            attempt = event.word.attempt
            handoff = self._known(attempt) if "reserve" not in self._unseen else self._begin(attempt)
            handoff.quiet = False

    def _heard_at_decode(self, event: Heard) -> None:
        word = event.word
        handoff = self._handoffs.get(word.attempt)
        self._ask("attempt-is-current", word.attempt, handoff is not None)
        if handoff is None:
            return
        if isinstance(word, Unknown):
            handoff.noisy = True
        elif isinstance(word, Promised):
            handoff.promise, handoff.quiet = word, True
        elif isinstance(word, Drained | Declined):
            handoff.quiet = True

    def _compared(self, event: Compared) -> None:
        attempt, promise = event.attempt, event.promise
        minted_here = attempt.gateway == self._life
        handoff = self._known(attempt) if minted_here else self._handoffs.get(attempt)
        if handoff is not None and minted_here and promise != handoff.promise:
            if promise is None or promise.attempt == attempt:
                raise LocalProtocolError(f"attempt {attempt} is compared with a promise that was not heard last")
        holds = self._judge(event)
        if handoff is not None:
            handoff.verified = holds and event.digest is not None
            handoff.quiet = handoff.quiet or handoff.verified
            handoff.noisy = handoff.noisy or (promise is not None and event.digest not in (None, promise.digest))

    def _judge(self, event: Compared) -> bool:
        """Ask the guards of a hand-off, the cheapest first, up to the first that does not hold."""
        promise = event.promise
        asked = [*((doubt, False) for doubt in event.doubts), ("stamp-at-adopt", promise is not None)]
        if promise is not None:
            sent, due = (promise.num_tokens, promise.num_pages), (event.num_tokens, event.num_pages)
            asked.append(("attempt-is-current", promise.attempt == event.attempt))
            asked.append(("layout-agrees", promise.layout == self._layout))
            asked.append(("count-matches", sent == due))
            if event.digest is not None:
                asked.append(("digest-matches", promise.digest == event.digest))
        for guard, holds in asked:
            self._ask(guard, event.attempt, holds)
            if not holds:
                return False
        return True

    def _used(self, event: Used) -> None:
        handoff = self._known(event.attempt)
        self._break_unless("adopted-is-verified", handoff.verified)
        if "release" in self._unseen:
            self._close(event.attempt)

    def _checked(self, _event: Checked) -> None:
        self._ask("stamp-at-read", None, holds=True)

    def _misread(self, event: Misread) -> None:
        self._break_unless("emitted-is-clean", not self._ask("stamp-at-read", event.attempt, holds=False))

    def _returns(self, event: Returning) -> None:
        handoff = self._known(event.attempt)
        quiet = handoff.quiet and not handoff.noisy
        if self._ask("drain-or-fence", event.attempt, quiet):
            self._break_unless("no-timer-frees", quiet)
            self._close(event.attempt)

    def _rebuilt(self, _event: SessionRebuilt) -> None:
        for handoff in self._handoffs.values():
            handoff.quiet, handoff.noisy = True, False
