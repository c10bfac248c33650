"""Whole graphs of small worlds, to hold a reduced search against."""

from collections import Counter

from msgspec.structs import replace

from kvfence.prove.bounds import Bounds
from kvfence.prove.search import Search
from kvfence.prove.successors import edges, start_of
from kvfence.prove.world import World

Ways = frozenset[tuple[str, World, tuple[str, ...]]]


def whole(search: Search) -> dict[World, tuple[Ways, bool]]:
    """Give every world with what can happen in it, nothing settled beforehand, and whether it is at rest."""
    start = search.canonical(start_of(search.model))
    graph: dict[World, tuple[Ways, bool]] = {}
    waiting, seen = [start], {start}
    while waiting:
        world = waiting.pop()
        found, rest = edges(search.model, world)
        ways = frozenset((edge.kind, search.canonical(edge.world), edge.broken) for edge in found)
        graph[world] = ways, rest
        for _, after, _ in ways:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return graph


def unmatched(bounds: Bounds) -> tuple[int, Counter[str]]:
    """Count the worlds of the whole graph, and what happens there and not, too, in the settled world it becomes.

    An edge is matched by one of its kind that breaks the same and ends in the same settled world; or where both ends
    become one settled world and nothing breaks. A world at rest must be settled already.
    """
    search = Search(replace(bounds, settled=True))
    graph = whole(search)
    settled: dict[World, World] = {}
    matches: dict[World, Ways] = {}
    missing: Counter[str] = Counter()

    def of(world: World) -> World:
        if world not in settled:
            settled[world] = search.named(world)
        return settled[world]

    for world, (ways, rest) in graph.items():
        into = of(world)
        if into not in matches:
            found, _ = edges(search.model, into)
            matches[into] = frozenset((edge.kind, search.named(edge.world), edge.broken) for edge in found)
        missing["at rest"] += rest and into != world
        for kind, after, broken in ways:
            alike = (kind, of(after), broken) in matches[into] or (of(after) == into and not broken)
            missing[kind] += not alike
    return len(graph), +missing
