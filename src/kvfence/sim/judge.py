"""How good is the simulation? Its hit rate on known mistakes, each planted into an otherwise guarded system.

A mutant is a guard's absence under its fault (``cases.py``), with the other guards that stop the same fault away, or a
mistake of a known engine, M1 to M15. A simulator is judged by how often and how soon it finds these, never by how many
seeds it ran.
"""

import time
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from kvfence.driver.loop import Rewrite
from kvfence.driver.mutants import failed_post_counts, placeholder_on_refusal
from kvfence.protocol.guards import GUARDS, Rules
from kvfence.sim.cases import CASES, CRAMPED, LEAK, SHARED, Case, play
from kvfence.sim.faults import Faults

FIRST_HIT_MAX = 20_000
"""Runs within which every mutant must be found."""

RATE_RUNS = 20
"""Runs after which a mutant's rate is told, whether it was found or not."""


class Mutant(Struct, frozen=True):
    """One planted mistake. ``known_as``: the errors of engines that it stands for, M1 to M15."""

    name: str
    rules: Rules
    case: Case
    known_as: tuple[str, ...] = ()


class Hits(Struct, frozen=True):
    """How a mutant was found. ``first``: the run of the first hit, counted from 1; 0: none was."""

    name: str
    known_as: tuple[str, ...]
    num_runs: int
    num_hits: int
    first: int
    seed: int
    broken: tuple[str, ...]
    cpu_s: float


KNOWN = {
    "refusal-is-final": ("M1",),
    "quarantine-on-revoke": ("M2", "M6"),
    "drain-or-fence": ("M3", "M8"),
    "hold-source": ("M7",),
    "attempt-is-current": ("M9",),
    "stamp-at-read": ("M10",),
    "pass-ended": ("M11",),
    "verified-before-shared": ("M13",),
}
"""Which errors of engines a guard's absence is."""

ELSEWHERE = {
    "M4": "one ack target for several decode ranks: an attempt here has one decode worker",
    "M5": "an abort that is never answered frees no page here: quarantine waits for the fence",
    "M14": "a completion that is never heard breaks nothing: decode answers the repeated Sent of an attempt that is "
    "over with Abort, and the pages return",
    "M15": "a failure of one KV group of several: a page here holds all layers, and one stamp",
}
"""Errors that cannot be planted here, and why."""


def mutants() -> tuple[Mutant, ...]:
    """Give every mutant: each guard's absence, and the engines' mistakes that are none."""
    found = [
        Mutant(f"without {name}", Rules.without(name, *GUARDS[name].alone), case, KNOWN.get(name, ()))
        for name, case in CASES.items()
    ]
    found += [Mutant(f"without {name}, shared pages", Rules.without(name), case) for name, case in SHARED.items()]
    proofs = ("stamp-at-adopt", "digest-matches", "stamp-at-read")
    torn = Case(LEAK, Faults(stall=0.5, tear=0.2), rewrites=(_whoever(failed_post_counts),))
    found.append(Mutant("a failed post counts as done", Rules.without(*proofs), torn, ("M12",)))
    found.append(
        Mutant(
            "the incident's engine",
            Rules.without("fits@gateway", *GUARDS["fits"].alone, "refusal-is-final", *GUARDS["refusal-is-final"].alone),
            Case(LEAK, capacity=CRAMPED, rewrites=(placeholder_on_refusal,)),
            ("M1",),
        )
    )
    return tuple(found)


def _whoever(rewrite: Rewrite) -> Callable[[object], Rewrite]:
    """Make a rewriter that needs no capacity one that is given it."""
    return lambda _: rewrite


def judge(mutant: Mutant, rate_runs: int = RATE_RUNS, runs_max: int = FIRST_HIT_MAX) -> Hits:
    """Run a mutant's seeds: so many for its rate, and on until it was found, up to the bound."""
    began = time.process_time()
    num_runs = num_hits = first = seed_of_first = 0
    broken: tuple[str, ...] = ()
    for seed in _seeds(mutant.case, runs_max):
        if num_runs >= rate_runs and num_hits:
            break
        num_runs += 1
        harmed = _harm_of(mutant, seed)
        if harmed:
            num_hits += 1
            if not first:
                first, seed_of_first, broken = num_runs, seed, harmed
    cpu_s = round(time.process_time() - began, 2)
    return Hits(mutant.name, mutant.known_as, num_runs, num_hits, first, seed_of_first, broken, cpu_s)


def _seeds(case: Case, runs_max: int) -> Iterator[int]:
    """A scripted case is one run; a drawn one has a run a seed."""
    return iter(range(1 if case.play is not None else runs_max))


def _harm_of(mutant: Mutant, seed: int) -> tuple[str, ...]:
    broken = set(play(mutant.case, mutant.rules, seed).broken)
    return tuple(sorted(broken & mutant.case.harm if mutant.case.harm else broken))


def guarded(mutant: Mutant) -> Mutant:
    """Give the same faults with every guard on: nothing may break, in a scripted case nothing that it is about."""
    case = mutant.case if mutant.case.play is not None else replace(mutant.case, harm=frozenset())
    return replace(mutant, rules=Rules.all(), case=case)
