"""Is what the search sees what was proved? Every conjunct on every world, every edge a few abstract actions or none.

The actions are looked for: those that change something in which the worlds differ, about things in which they differ,
the nearest first. What a world no longer knows is not compared (``observed.py``).
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct

from kvfence.protocol.guards import Rules
from kvfence.prove.invariant import fields
from kvfence.prove.invariant.action import Action, Guards
from kvfence.prove.invariant.fields import CHANGING, FIXED
from kvfence.prove.invariant.logic import Field, State, Values
from kvfence.prove.invariant.observed import NOBODY, Facts, Observed
from kvfence.prove.invariant.rules import ACTIONS, CONJUNCTS

EXPANSIONS_MAX = 400

Difference = tuple[str, tuple[Any, ...]]


class Path(Struct, frozen=True):
    """How an edge is explained: the actions, or what stays unexplained."""

    actions: tuple[str, ...]
    unexplained: tuple[str, ...] = ()


def _field(name: str, facts: Mapping[tuple[Any, ...], Any], domains: Mapping[str, Sequence[Any]]) -> Field:
    _, kind = {**FIXED, **CHANGING}[name]
    default: Any = {"bool": False, "int": 0, "index": 0, "request": NOBODY}.get(kind)
    if kind in ("attempt", "page", "source", "life"):
        default = next(iter(domains[kind]), None)
    return lambda *key: facts.get(key, default)


def state_of(seen: Observed, more: Facts | None = None) -> State:
    """Give the whole state: what is known, and of the rest what claims least."""
    domains = seen.domains
    facts = {name: {**known} for name, known in (more or seen.facts).items()}
    gone = [number for number in domains["attempt"] if ("prefill" in facts and (number,) not in facts["prefill"])]
    for number in gone:
        _assume_gone(facts, number)
    for life in domains["life"]:
        facts["next_serial"].setdefault((life,), 1 << 30)
    for number in domains["attempt"]:
        facts["worker"].setdefault((number,), facts["placed"][(number,)])
        facts["session_of"].setdefault((number,), facts["session"][()])
        _assume_ended(facts, number)
    return State({name: _field(name, facts[name], domains) for name in facts})


def _assume_gone(facts: Facts, number: int) -> None:
    """An attempt whose prefill process is no more: it posts nothing; what it posted may still land."""
    size = facts["size"][(number,)]
    over = facts["decode"].get((number,)) in (fields.VERIFYING, fields.RUNNING)
    landed = over or facts["sent"].get((number,), False) or facts["drained"].get((number,), False)
    for name, value in (("num_send", size), ("num_sealed", size), ("num_posted", size)):
        facts[name].setdefault((number,), value)
    facts["num_landed"].setdefault((number,), size if landed else 0)
    facts["prefill"][(number,)] = fields.P_CLOSED
    facts["unknown"].setdefault((number,), not landed)
    facts["quiet"].setdefault((number,), True)


def _assume_ended(facts: Facts, number: int) -> None:
    """A write that nobody remembers has ended, one way or the other."""
    if facts["sent"].get((number,)) or facts["decode"].get((number,)) in (fields.VERIFYING, fields.RUNNING):
        for name in ("num_send", "num_sealed", "num_posted", "num_landed"):
            facts[name].setdefault((number,), facts["size"][(number,)])
    landed = facts["num_landed"].get((number,), 0)
    for index in range(facts["size"][(number,)]):
        posted = index < facts["num_posted"].get((number,), 0)
        ended = fields.LANDED if index < landed else fields.ENDED if posted else fields.UNPOSTED
        facts["write"].setdefault((number, index), ended)
        page = facts["table"].get((number, index))
        if facts["write"][(number, index)] == fields.LANDED and facts["first_of"].get((page,)) == NOBODY:
            facts["corrupted"].setdefault((number, index), True)
    facts["quiet"].setdefault((number,), True)
    if (number,) not in facts["num_send"]:
        facts["num_send"][(number,)] = facts["size"][(number,)]


def broken_in(seen: Observed) -> list[str]:
    """Name the conjuncts that a world breaks."""
    o, state, domains = Values(seen.domains), state_of(seen), seen.domains
    return [
        conjunct.name
        for conjunct in CONJUNCTS
        if not all(conjunct.of(o, state, *args) for args in product(*(domains[sort] for sort in conjunct.sorts)))
    ]


# ---- edges -------------------------------------------------------------------------------------------------------


class Refinement:
    """Explains edges with the actions of one set of guards."""

    def __init__(self, rules: Rules = Rules()) -> None:
        self.guards = Guards(rules, set())

    def explain(self, before: Observed, after: Observed) -> Path:
        """Look for actions that lead from what one world stands for to what the other does."""
        domains = after.domains
        o = Values({**domains, "bool": [False, True]})
        known = {**before.facts, **{name: after.facts[name] for name in FIXED}}
        for name in ("source", "table"):
            known[name] = {**after.facts[name], **before.facts[name]}
        start = _materialised(state_of(after, _completed(known, after)), domains)
        return _search(o, self.guards, start, after.facts)


def _completed(known: Facts, after: Observed) -> Facts:
    """Attempts and lives that the world before had not seen have done nothing there; what decode forgot is over."""
    facts = {name: {**values} for name, values in known.items()}
    for number in after.domains["attempt"]:
        if (number,) not in facts["decode"]:
            seen = facts["prefill"].setdefault((number,), fields.P_NONE) != fields.P_NONE
            facts["decode"][(number,)] = fields.CLOSED if seen else fields.NONE
            facts["worker"].setdefault((number,), facts["placed"][(number,)])
    for life, page in after.domains["source"]:
        if (life,) not in facts["dead"]:
            facts["next_serial"][(life,)] = 1
            facts["source_at"][((life, page),)] = -1
    return facts


Table = dict[str, dict[tuple[Any, ...], Any]]


def _materialised(state: State, domains: Mapping[str, Sequence[Any]]) -> Table:
    return {name: _values(state.fields[name], CHANGING[name][0], domains) for name in CHANGING} | {
        name: _values(state.fields[name], FIXED[name][0], domains) for name in FIXED
    }


def _values(field: Field, sorts: Iterable[str], domains: Mapping[str, Sequence[Any]]) -> dict[tuple[Any, ...], Any]:
    return {key: field(*key) for key in product(*(domains[sort] for sort in sorts))}


def _state(values: Table) -> State:
    return State({name: _lookup(known) for name, known in values.items()})


def _lookup(known: Mapping[tuple[Any, ...], Any]) -> Field:
    return lambda *key: known.get(key)


def _differences(values: Table, wanted: Facts) -> list[Difference]:
    return [
        (name, key)
        for name in CHANGING
        for key, value in wanted[name].items()
        if name not in _NOT_COMPARED and values[name].get(key) != value
    ]


_NOT_COMPARED = ("noticed", "head_own")
_ENABLING = ("computing", "batch", "holds", "owes")
"""Worlds forget these first; what changes them may have to happen before something that is seen."""


def _search(o: Values, guards: Guards, start: Table, wanted: Facts) -> Path:
    first = _differences(start, wanted)
    said = {wanted[name][key] for name, key in first if CHANGING[name][1] == "int"}
    numbers = sorted({*range(1, len(o.domains["index"]) + 1), *said})
    queue: list[tuple[int, int, int, Table, tuple[str, ...]]] = [(len(first), 0, 0, start, ())]
    seen: set[int] = set()
    ticket = 0
    best = first
    for _ in range(EXPANSIONS_MAX):
        if not queue:
            break
        number, depth, _, values, path = heapq.heappop(queue)
        if number == 0:
            return Path(path)
        different = _differences(values, wanted)
        best = min(best, different, key=len)
        for name, after in _steps(o, guards, values, different, numbers):
            key = _key(after)
            if key not in seen:
                seen.add(key)
                ticket += 1
                heapq.heappush(queue, (len(_differences(after, wanted)), depth + 1, ticket, after, (*path, name)))
    return Path((), tuple(f"{name}{key}" for name, key in best))


def _key(values: Table) -> int:
    return hash(tuple(tuple(values[name].values()) for name in CHANGING))


def _steps(
    o: Values, guards: Guards, values: Table, different: Sequence[Difference], numbers: Sequence[int]
) -> Iterator[tuple[str, Table]]:
    names = {name for name, _ in different}.union(_ENABLING)
    state = _state(values)
    about = {**_about(different, o.domains, state), "int": numbers}
    for action in ACTIONS:
        if names.isdisjoint(_CHANGES[action.name]):
            continue
        for parameters in product(*(about[kind] for kind in action.parameters)):
            effect = action.does(o, state, guards, *_callable(action, parameters))
            if effect.may:
                yield action.name, _taken(values, state, effect.after, o.domains)


def _callable(action: Action, parameters: Sequence[Any]) -> list[Any]:
    return [
        (lambda each, members=value: each in members) if kind in ("pages", "lives") else value
        for kind, value in zip(action.parameters, parameters, strict=True)
    ]


def _taken(values: Table, before: State, after: State, domains: Mapping[str, Sequence[Any]]) -> Table:
    changed = {
        name: _values(field, CHANGING[name][0], domains)
        for name, field in after.fields.items()
        if field is not before.fields[name]
    }
    return {**values, **changed}


def _about(
    different: Sequence[Difference], domains: Mapping[str, Sequence[Any]], state: State
) -> dict[str, Sequence[Any]]:
    """The things in which the worlds differ, and those that are near."""
    touched: dict[str, list[Any]] = {sort: [] for sort in ("attempt", "index", "page", "source", "life")}
    for name, key in different:
        for sort, value in zip(CHANGING[name][0], key, strict=True):
            if value not in touched[sort]:
                touched[sort].append(value)
    attempts = touched["attempt"] + [state.owner(page) for page in touched["page"]]
    attempts += [state.source_owner(source) for source in touched["source"]]
    near = [each for each in dict.fromkeys(attempts) if each in domains["attempt"]]
    pages = [frozenset(chosen) for chosen in (touched["page"], ())]
    return {
        **domains,
        "attempt": near,
        "page": touched["page"],
        "source": domains["source"],
        "life": list(domains["life"]),
        "pages": pages,
        "lives": [frozenset(domains["life"][-1:]), frozenset(domains["life"])],
    }


def _changes() -> dict[str, frozenset[str]]:
    """What each action can change, asked once with nothing in particular."""
    domains: dict[str, Sequence[Any]] = {sort: [] for sort in ("attempt", "index", "page", "source", "life", "request")}
    blank = State({name: (lambda *_: 0) for name in (*FIXED, *CHANGING)})
    found = {}
    for action in ACTIONS:
        parameters = [(lambda _: False) if kind in ("pages", "lives") else 0 for kind in action.parameters]
        after = action.does(Values(domains), blank, Guards(Rules(), set()), *parameters).after
        found[action.name] = frozenset(n for n, field in after.fields.items() if field is not blank.fields[n])
    return found


_CHANGES = _changes()
