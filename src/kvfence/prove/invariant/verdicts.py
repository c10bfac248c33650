"""What becomes of the proof when a guard is taken away: which action no longer keeps which conjunct.

A guard without which everything is still shown is not useless: it protects work and answers, not pages, or others that
are on answer its fault as well. Each is said to be so.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from kvfence.protocol.guards import GUARDS, Guard, Rules
from kvfence.prove.invariant.induction import Failure, Induction

Outcome = Literal["breaks safety", "breaks the argument", "unknown", "stands"]

OUTSIDE: dict[str, str] = {
    "fits": "sizes are free in this proof: a prompt that fits nowhere waits or is refused; without the guard its "
    "client hears so late or never",
    "settle-before-cancel": "in this proof an attempt may be cancelled at any moment: the guard saves work, not pages",
    "tenant-salt": "prefix reuse is not in this proof",
    "verified-before-shared": "prefix reuse is not in this proof",
}
"""Guards that no action here asks, and why."""

ASSUMPTIONS: tuple[str, ...] = (
    "A write lands in address order: head, bytes, tail. Where nothing promises that, comparing at read is a probe.",
    "A misdirected write carries another tag than its victim's, and one that nobody noticed has landed whole before "
    "the page's next head is written.",
    "A fence is what its transport says: an exited process writes no more, a rebuilt session takes nothing old, a "
    "receiver that checks refuses what is not granted.",
    "After the supervisor's proof for a former life of decode nothing written for that life lands any more.",
    "A digest matches the bytes it was made of and no others.",
    "Prefill's own pages are written by itself alone; prefix reuse is off.",
)


class Verdict(Struct, frozen=True):
    """What the proof says without some guards. ``because``: why it stands, where it does."""

    guard: str
    fault: str
    without: tuple[str, ...]
    outcome: Outcome
    because: str
    fails: tuple[Failure, ...]


def outcome_of(failures: Iterable[Failure]) -> Outcome:
    """Judge what no longer holds: what is promised, or only what it is shown with; unknown where Z3 gave up on all."""
    asked = list(failures)
    found = [failure for failure in asked if not failure.unknown]
    if any(failure.safety for failure in found):
        return "breaks safety"
    return "breaks the argument" if found else "unknown" if asked else "stands"


def without(induction: Induction, *names: str) -> Verdict:
    """Take guards away together; the first is the one in question."""
    guard = GUARDS[names[0].split("@")[0]]
    proof = induction.prove(Rules.without(*names))
    outcome = outcome_of(proof.failures)
    because = _because(guard) if outcome == "stands" else ""
    return Verdict(guard.name, guard.fault, names, outcome, because, proof.failures)


def _because(guard: Guard) -> str:
    if guard.name in OUTSIDE:
        return OUTSIDE[guard.name]
    others = ", ".join(guard.redundant or guard.alone)
    return f"redundant while these are on: {others}" if others else "no action here needs it"


def each_guard(induction: Induction) -> Iterator[Verdict]:
    """Take every guard away, alone and with all that answer its fault beside it."""
    for guard in GUARDS.values():
        yield without(induction, guard.name)
        if guard.alone:
            yield without(induction, guard.name, *guard.alone)
