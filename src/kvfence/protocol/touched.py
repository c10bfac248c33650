"""The part of a node that one step touched: properties that hold entry by entry are asked there, and cost no more.

A property of a node costs the node's size, and a step changes a few entries of it. Asked of the touched entries alone,
it says the same wherever it held before the step. What a step touched is read from what it names (``named``); what it
changed, of all (``changed``).

Not for: sums over all entries (``WHOLE``), which are asked of whole nodes now and then. Read ``properties.py`` first.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId
from kvfence.protocol.commands import Command, Move, Send
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import ClientGone, Event, PassBegan, PassEnded, Received
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.handoff import DecodeHandoff, PrefillHandoff
from kvfence.protocol.lots import HeldLot, Pool
from kvfence.protocol.messages import EndReason, Message
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import OF_NODES, OF_STEPS, NodeProperty, StepProperty, Taken, broken_by
from kvfence.protocol.relevance import Kinds, relevant_to
from kvfence.protocol.step import Node, Step
from kvfence.protocol.transitions import DecodePhase, PrefillPhase

WHOLE = frozenset({"accounting"})
"""Sums over all pages: a part says nothing of them."""

_OF_THE_QUEUE = frozenset({"cache-makes-room", "waiting-is-fifo"})
"""About who comes first of all: asked of the whole, where somebody waits."""

_OF_THE_OLDEST = frozenset({"oldest-stays"})

_OF_HOLDERS = frozenset({"holders-agree", "holders-share-a-salt", "held-stays"})
"""About all who hold the touched lots, whom a step need not name."""

_OF_ENTRIES = frozenset({"layouts-agree"})
"""Of a step, and yet about every hand-off."""

_WITH_LIVES = frozenset({"floors-grow"})
"""Asked where lives changed; then everything is asked of the whole."""

_ELSEWHERE = WHOLE | _OF_THE_QUEUE | _OF_THE_OLDEST | _OF_HOLDERS | _OF_ENTRIES | _WITH_LIVES


class _Asked(Struct, frozen=True):
    """The properties that a step of some kinds can break, by where they are asked."""

    entries: tuple[NodeProperty, ...]
    entries_of_step: tuple[StepProperty, ...]
    step: tuple[StepProperty, ...]
    holders: tuple[NodeProperty, ...]
    holders_of_step: tuple[StepProperty, ...]
    queue: tuple[NodeProperty, ...]
    queue_of_step: tuple[StepProperty, ...]
    oldest: tuple[StepProperty, ...]


@lru_cache(4096)
def _asked(node: type, kinds: Kinds) -> _Asked:
    relevant = relevant_to(node, kinds)

    def nodes(names: frozenset[str]) -> tuple[NodeProperty, ...]:
        return tuple(p for p in relevant.nodes if p.name in names)

    def steps(names: frozenset[str]) -> tuple[StepProperty, ...]:
        return tuple(p for p in relevant.steps if p.name in names)

    names = [p.name for p in OF_NODES] + [p.name for p in OF_STEPS]
    here = frozenset(names) - _ELSEWHERE
    return _Asked(
        nodes(here),
        steps(_OF_ENTRIES),
        steps(here),
        nodes(_OF_HOLDERS),
        steps(_OF_HOLDERS),
        nodes(_OF_THE_QUEUE),
        steps(_OF_THE_QUEUE),
        steps(_OF_THE_OLDEST) if node is DecodeNode else (),
    )


def broken_in_part(taken: Taken, kinds: Kinds, attempts: set[AttemptId]) -> list[str]:
    """Name the properties that this step breaks; those of ``WHOLE`` are not asked.

    Where lives changed, which every entry depends on, everything is asked of the whole.
    ``kinds``, ``attempts``: what was said and done in it, and whom it names (``kinds_of``, ``named``).
    """
    before, after = taken.before, taken.step.node
    if after is before and not taken.step.commands:
        return []
    if after.lives is not before.lives:
        return broken_by(taken)
    asked = _asked(type(after), kinds)
    broken = [p.name for p in asked.step if not p.holds(taken)]
    if isinstance(before, GatewayNode) and isinstance(after, GatewayNode):
        if after.current is before.current and all(attempt in after.handoffs for attempt in attempts):
            return broken  # who feeds whom is as it was
        part: Node = _gateway_part(before, after, attempts)
        return broken + [p.name for p in asked.entries if not p.holds(part)]
    cut = _Cut(before, after, attempts, taken.step)
    return broken + _broken_at_worker(taken, asked, cut)


def _broken_at_worker(taken: Taken, asked: _Asked, cut: "_Cut") -> list[str]:
    before: Any = taken.before
    after: Any = taken.step.node
    part = cut.part()
    broken = [p.name for p in asked.entries if not p.holds(part)]
    if asked.entries_of_step:
        then = replace(taken, step=replace(taken.step, node=part))
        broken += [p.name for p in asked.entries_of_step if not p.holds(then)]
    if asked.holders and cut.serials and cut.holders_changed():
        held = replace(taken, step=replace(taken.step, node=cut.held()))
        broken += [p.name for p in asked.holders if not p.holds(held.step.node)]
        broken += [p.name for p in asked.holders_of_step if not p.holds(held)]
    if after.waiting or before.waiting:
        broken += [p.name for p in asked.queue if not p.holds(after)]
        if after.waiting is not before.waiting:
            broken += [p.name for p in asked.queue_of_step if not p.holds(taken)]
    if asked.oldest and EndReason.PREEMPTED in {h.ending for h in part.handoffs.values()}:
        broken += [p.name for p in asked.oldest if not p.holds(taken)]
    return broken


# ---- what a step names -------------------------------------------------------------------------------------------


_ONE = frozenset(
    kind for kind in (*get_args(Event), *get_args(Command), *get_args(Message)) if "attempt" in kind.__struct_fields__
)
"""What names one attempt."""

_SEVERAL = frozenset(kind for kind in get_args(Command) if "attempts" in kind.__struct_fields__)
"""Commands that name several."""


def named(before: Node, event: Event, step: Step) -> set[AttemptId]:
    """Give every attempt that an event, its commands or its decisions name."""
    attempts = _of_event(before, event)
    for command in step.commands:
        told: Any = command.message if type(command) is Send else command
        kind = type(told)
        if kind in _ONE:
            attempts.add(told.attempt)
        elif kind in _SEVERAL:
            attempts.update(told.attempts)
    for decision in step.decisions:
        if decision.attempt is not None:
            attempts.add(decision.attempt)
    return attempts


def _of_event(before: Node, event: Event) -> set[AttemptId]:
    told: Any = event.envelope.message if type(event) is Received else event
    if type(told) in _ONE:
        return {told.attempt}
    if isinstance(event, PassBegan):
        return set(event.attempts)
    if isinstance(event, PassEnded) and not isinstance(before, GatewayNode):
        return set(before.passes.get(event.id, ()))
    if isinstance(event, ClientGone) and isinstance(before, GatewayNode):
        attempt = before.current.get(event.request)
        return set() if attempt is None else {attempt}
    return set()


def changed(before: Mapping[AttemptId, object], after: Mapping[AttemptId, object]) -> set[AttemptId]:
    """Give the attempts of which two tables hold different entries: entries never change, so another is another one."""
    new = {attempt for attempt, entry in after.items() if before.get(attempt) is not entry}
    return new.union(before.keys() - after.keys())


# ---- the part ----------------------------------------------------------------------------------------------------


def _gateway_part(before: GatewayNode, after: GatewayNode, attempts: set[AttemptId]) -> GatewayNode:
    handoffs = {a: h for a in attempts if (h := after.handoffs.get(a)) is not None}
    asked = [h.request for node in (before, after) for a in attempts if (h := node.handoffs.get(a)) is not None]
    current = {r: a for r in asked if (a := after.current.get(r)) is not None}
    return replace(after, handoffs=handoffs, current=current)


class _Cut:
    """Cuts a worker's node down to what a step touched."""

    def __init__(self, before: Any, after: Any, attempts: set[AttemptId], step: Step) -> None:
        self.attempts = attempts
        self._before, self._after = before, after
        self._handoffs = {a: h for a in attempts if (h := after.handoffs.get(a)) is not None}
        self._known = [h for a in attempts if (h := before.handoffs.get(a)) is not None]
        self._known += self._handoffs.values()
        self.serials: set[int] = set()
        if isinstance(after, PrefillNode):
            self.serials.update(command.serial for command in step.commands if isinstance(command, Move))
            for handoff in self._known:
                self.serials.update([lot.serial for lot in handoff.lots])

    def part(self) -> Any:
        """Give the node as if it held nothing but what the step names; of decode's quarantine nothing is left out."""
        before, after = self._before, self._after
        queue = after.waiting and (before.waiting is not after.waiting or any(map(_waits, self._known)))
        waiting = tuple(a for a in after.waiting if a in self.attempts) if queue else ()
        passes = {p: tuple({h.attempt for h in self._known if p in h.passes}) for p in after.passes}
        if not isinstance(after, PrefillNode):
            return replace(after, handoffs=self._handoffs, waiting=waiting, passes=passes)
        pool, num_idle = self._without_rest(self._pool())
        lots_max = after.cached_lots_max - num_idle
        return replace(
            after, handoffs=self._handoffs, pool=pool, waiting=waiting, passes=passes, cached_lots_max=lots_max
        )

    def holders_changed(self) -> bool:
        """Is a lot, who holds it, or what a named attempt holds, another than before?"""
        if self._before.pool.held is not self._after.pool.held:
            return True
        before, after = self._before.handoffs, self._after.handoffs
        return any(_held_by(before.get(attempt)) != _held_by(after.get(attempt)) for attempt in self.attempts)

    def held(self) -> Any:
        """Give the node as if there were no lots but the touched ones, and nobody but all who hold one."""
        after = self._after
        pools = (self._before.pool, after.pool)
        entries = [entry for pool in pools for s in self.serials if (entry := pool.held.get(s)) is not None]
        attempts = self.attempts.union(*(entry.holders for entry in entries))
        handoffs = {a: self._of_lots(h) for a in attempts if (h := after.handoffs.get(a)) is not None}
        return replace(after, handoffs=handoffs, pool=self._pool())

    def _of_lots(self, handoff: PrefillHandoff) -> PrefillHandoff:
        lots = handoff.lots
        kept = tuple(lot for lot in lots if lot.serial in self.serials)
        return handoff if kept == lots else replace(handoff, shared=kept[:-1], lot=kept[-1] if kept else None)

    def _pool(self) -> Pool:
        pool: Pool = self._after.pool
        if not pool.held:
            return pool
        return replace(pool, held={s: e for s in self.serials if (e := pool.held.get(s)) is not None})

    def _without_rest(self, pool: Pool) -> tuple[Pool, int]:
        """Take from the sums what stands for lots outside the part, which are as they were."""
        before: Pool = self._before.pool
        entries: list[HeldLot] = [entry for s in self.serials if (entry := before.held.get(s)) is not None]
        num_cached = before.num_cached - sum(entry.num_cached for entry in entries)
        num_idle = before.num_idle - sum(entry.is_idle for entry in entries)
        if not num_cached and not num_idle:
            return pool, 0
        return replace(pool, num_cached=pool.num_cached - num_cached, num_idle=pool.num_idle - num_idle), num_idle


def _held_by(handoff: PrefillHandoff | None) -> tuple[object, ...]:
    return () if handoff is None else (handoff.lot, handoff.shared, handoff.salt)


def _waits(handoff: DecodeHandoff | PrefillHandoff) -> bool:
    return handoff.phase is DecodePhase.WAITING or handoff.phase is PrefillPhase.WAITING
