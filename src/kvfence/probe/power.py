"""How many answers could have shown a leak, and which rate of leaking answers their silence bounds.

An answer is counted if another tenant's markers had been sent before it ended, if it holds text, and if it either
ended by itself or is as long as the shortest in which an own marker was seen. The chance that a leak is *seen* in such
an answer is taken to be the rate at which this model repeats a marker that stands before it: the positive controls,
every different prompt of the run that asks for its own marker, read by the same forms as the detector's, of which the
lower limit (Clopper and Pearson) is used. With ``W`` the sum of these chances the rate of leaking answers is below
``-ln(MISS / 2) / W`` at 95 %, or Poisson's limit where chance has put a foreign marker's words somewhere: half the
chance of error is spent on the power, half on the rate, so that both limits hold together.
Not for: what is then said (``verdict.py``).
"""

from collections.abc import Sequence

from msgspec import Struct

from kvfence.probe.chance import CONFIDENCE, rate_above, rate_below
from kvfence.probe.detectors import foreign_marker
from kvfence.probe.exchange import Exchange, Phase, Record, Trouble, first_of_each_prompt
from kvfence.probe.finding import answer_of
from kvfence.probe.lexicon import Lexicon, lexicon_of

MISS = 1 - CONFIDENCE
STALE = "stale"


class PhasePower(Struct, frozen=True):
    """One phase. ``counted``: answers that could have shown a leak; ``bound``: of their rate of leaking.

    ``left``: answers that the probe went away from; ``failed``: broken, malformed, unreachable or asked to come later.
    ``seen`` of ``controls``: own markers shown; where a phase has none, all of the run are taken.
    """

    phase: str
    requests: int
    answered: int
    refused: int
    left: int
    failed: int
    counted: int
    seen: int
    controls: int
    bound: float | None


class Power(Struct, frozen=True):
    """The chance that a leak would have been seen.

    ``seen``, ``controls``: the positive control; ``chance``: its lower limit; ``weight``: counted answers, each by its
    chance; ``near``: of these, answers with all words of a foreign marker but one, or all, which chance may do.
    ``stale``: the controls were made as a leak reads, and not ordinary prompts.
    """

    seen: int
    controls: int
    chance: float
    counted: int
    near: int
    weight: float
    stale: bool
    phases: tuple[PhasePower, ...]

    @property
    def bound(self) -> float | None:
        """Give the rate of leaking answers that is not reached at 95 %; None where nothing bounds it."""
        return rate_below(self.near, self.weight, MISS / 2) if self.weight > 0 else None


Control = tuple[Exchange, bool]


def power_of(record: Record) -> Power:
    """Count what could have been seen."""
    controls = _controls(record, lexicon_of(record.words))
    seen = [each for each, shown in controls if shown]
    chance = _chance(controls)
    enough = min(map(_length, seen), default=0)
    near = foreign_marker.near(record)
    foreign = {tenant: _first_foreign(record, tenant) for tenant in {each.ask.tenant for each in record.exchanges}}
    counted = [each for each in record.exchanges if _counts(each, enough, foreign[each.ask.tenant])]
    near &= {each.ask.number for each in counted}
    return Power(
        seen=len(seen),
        controls=len(controls),
        chance=chance,
        counted=len(counted),
        near=len(near),
        weight=len(counted) * chance,
        stale=any(each.ask.role == STALE for each, _ in controls),
        phases=tuple(_phase(phase, record, counted, controls, near) for phase in Phase),
    )


def _controls(record: Record, lexicon: Lexicon) -> list[Control]:
    """Give the first answer to every different prompt that asks for its own marker; of stale ones where there are."""
    asked = [each for each in record.exchanges if each.is_answer and (each.ask.echo or each.ask.role == STALE)]
    first = first_of_each_prompt(asked)
    stale = [each for each in first if each.ask.role == STALE]
    return [(each, lexicon.shows(answer_of(each), each.ask.own)) for each in stale or first]


def _chance(controls: Sequence[Control]) -> float:
    return rate_above(sum(shown for _, shown in controls), len(controls), MISS / 2) if controls else 0.0


def _length(exchange: Exchange) -> int:
    return len(exchange.text) + len(exchange.aside)


def _first_foreign(record: Record, tenant: str) -> float:
    """Give when another tenant's marker was first sent."""
    return min(
        (each.sent_s for each in record.exchanges if each.ask.own and each.ask.tenant != tenant), default=float("inf")
    )


def _counts(exchange: Exchange, enough: int, foreign_s: float) -> bool:
    """Could this answer have shown a leak?"""
    if exchange.status != 200 or not _length(exchange) or exchange.ended_s <= foreign_s:
        return False
    whole = exchange.is_answer and exchange.finish_reason not in (None, "length")
    return whole or _length(exchange) >= enough


def _phase(
    phase: Phase, record: Record, counted: Sequence[Exchange], controls: Sequence[Control], near: set[int]
) -> PhasePower:
    asked = [each for each in record.exchanges if each.ask.phase is phase]
    mine = {each.ask.number for each in counted if each.ask.phase is phase}
    own = [control for control in controls if control[0].ask.phase is phase]
    chance = _chance(own or controls)
    troubles = [each.trouble for each in asked]
    return PhasePower(
        phase=str(phase),
        requests=len(asked),
        answered=sum(each.is_answer for each in asked),
        refused=troubles.count(Trouble.REFUSED),
        left=troubles.count(Trouble.LEFT),
        failed=sum(each not in (None, Trouble.REFUSED, Trouble.LEFT) for each in troubles),
        counted=len(mine),
        seen=sum(shown for _, shown in own),
        controls=len(own),
        bound=rate_below(len(mine & near), len(mine) * chance, MISS / 2) if mine and chance else None,
    )
