"""Beside what the proof says of a guard: how the search comes to the harm, step by step, in its smallest world."""

from kvfence.protocol.guards import GUARDS
from kvfence.prove.bounds import Bounds
from kvfence.prove.cases import CASES, without
from kvfence.prove.search import Limits, Search
from kvfence.prove.story import tell

LIMITS = Limits(cpu_s_max=20)


def trace(name: str) -> tuple[str, ...]:
    """Give the steps to the harm that this guard is for, with it away where that shows, else with all that answer it.

    Empty where no world is known for it, or none was found in time.
    """
    case = CASES.get(name)
    if case is None:
        return ()
    shows = case.by_itself or case
    alone = _searched(without(shows, name), shows.harm)
    return alone or _searched(without(case, name, *GUARDS[name].alone), case.harm)


def _searched(bounds: Bounds, harm: tuple[str, ...]) -> tuple[str, ...]:
    looking = Search(bounds, LIMITS, harm)
    way = next((way for way in looking.run().broken if way.name in harm), None)
    if way is None:
        return ()
    return (*(f"{m.number}. {m.text}" for m in tell(looking, way).moments), f"broken: {way.name}")
