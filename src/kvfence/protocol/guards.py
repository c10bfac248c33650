"""Every guard by name: the fault it answers, where it is asked, and the set that must be away with it.

``alone`` names the other guards that also stop the fault; with all of ``alone`` away this guard is the last line.
Production runs ``Rules.all()``; nothing in ``cli/serve`` can import another rule set.
"""

from typing import Literal

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.core.invariant import require

Place = Literal["gateway", "prefill", "decode"]


class Guard(Struct, frozen=True):
    """One guard. ``fault``: what goes wrong without it (and without ``alone``).

    ``redundant``: the guards that, when on, make its removal show nowhere; empty where removing it alone already
    breaks safety or a property of its own. ``refuses``: an attempt for which it does not hold is refused; all other
    guards keep a page from re-use or drop a message, which belongs to ordinary work.

    ``observable``: the places at which its refusal may be counted instead of obeyed, and everything else still works
    as if it were absent. Nowhere for a guard without which a request cannot run at all (``fits``,
    ``refusal-is-final``, ``layout-agrees``, prefill's own ``stamp-at-read``, which has nothing sealed to send),
    without which messages or pages are mistaken for another's, or which does a thing rather than refuse one.
    """

    name: str
    fault: str
    places: tuple[Place, ...]
    alone: tuple[str, ...] = ()
    redundant: tuple[str, ...] = ()
    refuses: bool = False
    observable: tuple[Place, ...] = ()


_ALL: tuple[Guard, ...] = (
    Guard(
        "fits",
        "a prompt larger than the context, the prefill pool or the decode pool",
        ("gateway", "prefill", "decode"),
        refuses=True,
    ),
    Guard(
        "refusal-is-final",
        "a refused request drained as a placeholder",
        ("prefill",),
        ("fits@gateway", "count-matches", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
        refuses=True,
    ),
    Guard(
        "count-matches",
        "fewer or more tokens transferred than offered",
        ("decode",),
        ("fits@gateway", "refusal-is-final", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
        redundant=("stamp-at-adopt",),
        refuses=True,
        observable=("decode",),
    ),
    Guard(
        "attempt-is-current",
        "stale, duplicated or reordered messages",
        ("gateway", "prefill", "decode"),
        ("count-matches", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
    ),
    Guard("peer-is-current", "messages of a former life", ("gateway", "prefill", "decode")),
    Guard(
        "stamp-at-adopt",
        "pages reserved but never written; a reference to re-used pages",
        ("decode",),
        ("fits@gateway", "refusal-is-final", "count-matches", "stamp-at-read", "digest-matches"),
        redundant=("digest-matches",),
        refuses=True,
        observable=("decode",),
    ),
    Guard(
        "stamp-at-read",
        "a late or misdirected write into a page in use",
        ("prefill", "decode"),
        refuses=True,
        observable=("decode",),
    ),
    Guard(
        "digest-matches",
        "corrupted or torn transfer; source re-used while read",
        ("decode",),
        refuses=True,
        observable=("decode",),
    ),
    Guard(
        "layout-agrees",
        "dtype, heads, page size, parallelism or digest name differ",
        ("prefill", "decode"),
        refuses=True,
    ),
    Guard("quarantine-on-revoke", "a write in flight when the holder goes", ("decode",)),
    Guard("quarantine-on-mismatch", "a page freed although a stray writer is active", ("prefill", "decode")),
    Guard("drain-or-fence", "release by time-out; receipt taken for drain", ("prefill", "decode")),
    Guard("hold-source", "prefill re-uses a page before the posted write has read it", ("prefill",)),
    Guard("pass-ended", "a stale forward pass writes a freed page", ("prefill", "decode")),
    Guard("tombstone", "an abort that overtakes its dispatch", ("prefill", "decode")),
    Guard("fence-on-start", "writes of a former life", ("decode",)),
    Guard("batch-bound", "an unbounded tail of writes after one time-out", ("prefill",)),
    Guard("settle-before-cancel", "a client's disconnect cutting an active transfer", ("gateway",)),
    Guard("zero-tail", "stale slots behind the last valid token", ("prefill",), refuses=True),
    Guard("tenant-salt", "a page of one tenant's prompt read for another's", ("prefill",)),
    Guard("verified-before-shared", "pages shared before they are written, or after nobody took them", ("prefill",)),
)

GUARDS: dict[str, Guard] = {guard.name: guard for guard in _ALL}

ASKED: frozenset[str] = frozenset(f"{guard.name}@{place}" for guard in _ALL for place in guard.places)
"""Every guard at every place, written ``guard@place``."""


OBSERVABLE: frozenset[str] = frozenset(f"{guard.name}@{place}" for guard in _ALL for place in guard.observable)
"""What ``Rules.observing`` asks and counts without obeying."""


class Rules(Struct, frozen=True, omit_defaults=True):
    """Which guards are enforced where. A guard that is absent is still asked and recorded, but not obeyed.

    ``observed``: not obeyed either, by an operator's wish: what they would have refused is counted as that.
    """

    absent: frozenset[str] = frozenset()
    observed: frozenset[str] = frozenset()

    @staticmethod
    def all() -> "Rules":
        """Every guard, everywhere: what production runs."""
        return Rules()

    @staticmethod
    def observing() -> "Rules":
        """Every guard, but verification's refusals are counted and not obeyed: foreign text may reach a client."""
        return Rules(observed=OBSERVABLE)

    @staticmethod
    def without(*names: str) -> "Rules":
        """All guards but these; ``name`` takes a guard away everywhere, ``name@place`` at one place."""
        absent: set[str] = set()
        for name in names:
            matches = {asked for asked in ASKED if asked == name or asked.split("@")[0] == name}
            require(bool(matches), f"no guard is called {name}")
            absent |= matches
        return Rules(frozenset(absent))

    def enforces(self, name: str, place: Place) -> bool:
        """Is this guard obeyed at this place?"""
        asked = f"{name}@{place}"
        return asked not in self.absent and asked not in self.observed

    def observes(self, name: str, place: Place) -> bool:
        """Is what this guard would refuse at this place counted instead?"""
        return f"{name}@{place}" in self.observed


class Decision(Struct, frozen=True, tag=True, omit_defaults=True):
    """One guard was asked: ``holds`` is what it answered, ``enforced`` whether that was obeyed.

    ``observed``: not obeyed because an operator asked for that.
    """

    guard: str
    place: Place
    attempt: AttemptId | None
    holds: bool
    enforced: bool
    observed: bool = False

    @property
    def answer(self) -> str:
        """Give the word that counts and metrics have for it: pass, refuse, observed or ignored."""
        if self.holds:
            return "pass"
        return "refuse" if self.enforced else "observed" if self.observed else "ignored"
