"""Pages that decode gave up while somebody may still write to them: kept out of the pool until that has ended.

What ends it is each prefill's word that nothing is being written any more, or a new receiving session; no time does.
Not for: why an attempt was given up (``at_decode.py``), how a session is made new (``session.py``).
"""

from collections.abc import Callable

from msgspec import Struct, field

from kvfence.core.ids import AttemptId

ASK_AGAIN_S = 0.25
"""Between two questions to a prefill that has not answered."""

WAIT_S = 5.0
"""After which a prefill that has not answered is not waited for alone: a new session is wanted. It frees nothing."""


class Held(Struct, eq=False):
    """One attempt's pages.

    ``places``: the prefill ranks that may write there; ``ask``: asks one; ``drained``: those that have answered.
    ``wants_session``: no answer would do.
    ``give_back``: what the engine does with the pages, and the row beside them, once they are quiet.
    """

    attempt: AttemptId
    room: int
    num_pages: int
    row: int
    places: frozenset[int]
    ask: Callable[[int], object]
    since_s: float
    wants_session: bool = False
    drained: set[int] = field(default_factory=set)
    asked_s: float = float("-inf")
    is_fenced: bool = False
    give_back: list[Callable[[], object]] = field(default_factory=list)

    @property
    def is_quiet(self) -> bool:
        """Is it proven that nobody writes there any more?"""
        return self.is_fenced or (not self.wants_session and self.places <= self.drained)


class Quarantine:
    """One decode rank's held pages, in the order in which the engine gave them up: the same on every rank.

    Owner:
        The engine's scheduler; ``note_drained`` and ``note_unknown`` come from its reader of messages.
    """

    def __init__(self) -> None:
        self.held: list[Held] = []

    @property
    def num_pages(self) -> int:
        """Give how many pages are kept out of the pool."""
        return sum(one.num_pages for one in self.held)

    def hold(self, held: Held) -> None:
        """Keep pages out of the pool."""
        self.held.append(held)

    def with_row(self, row: int) -> Held | None:
        """Give whose row this is; None where nobody's who is held."""
        return next((one for one in self.held if one.row == row), None)

    def note_drained(self, attempt: AttemptId, place: int) -> None:
        """One prefill rank writes nothing of this attempt any more."""
        for one in self.held:
            if one.attempt == attempt:
                one.drained.add(place)

    def note_unknown(self, attempt: AttemptId) -> None:
        """One prefill rank cannot say when its write ends."""
        for one in self.held:
            if one.attempt == attempt:
                one.wants_session = True

    def due(self, now_s: float) -> list[tuple[Held, int]]:
        """Give who is to be asked now, and for what."""
        due: list[tuple[Held, int]] = []
        for one in self.held:
            if not one.is_fenced and not one.wants_session and now_s - one.asked_s >= ASK_AGAIN_S:
                one.asked_s = now_s
                due += [(one, place) for place in sorted(one.places - one.drained)]
        return due

    def wants_session(self, now_s: float) -> bool:
        """Are there pages that only a new session makes quiet, or that it would make quiet sooner?"""
        return any(not one.is_quiet and (one.wants_session or now_s - one.since_s >= WAIT_S) for one in self.held)

    def fence(self) -> None:
        """The session that all of these pages were offered in has ended."""
        for one in self.held:
            one.is_fenced = True

    def release(self, quiet: list[bool]) -> list[Held]:
        """Give up those that are quiet, on every rank, in order; the others stay."""
        released = [one for one, is_quiet in zip(self.held, quiet, strict=True) if is_quiet]
        self.held = [one for one, is_quiet in zip(self.held, quiet, strict=True) if not is_quiet]
        return released
