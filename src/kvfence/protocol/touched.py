"""The part of a node that one step touched: properties that hold entry by entry are asked there, and cost no more.

A property of a node costs the node's size, and a step changes a few entries of it. Asked of the touched entries alone,
before and after, it says the same wherever it held before the step. What a step touched is read from what it names
(``named``); what it changed, of all (``changed``).

Not for: sums over all entries (``WHOLE``), which are asked of whole nodes now and then. Read ``properties.py`` first.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from kvfence.core.ids import AttemptId
from kvfence.protocol.commands import Command, Move
from kvfence.protocol.events import ClientGone, Event, PassBegan, PassEnded, Received
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.handoff import DecodeHandoff, PrefillHandoff
from kvfence.protocol.lots import HeldLot, Lot, Pool
from kvfence.protocol.messages import EndReason
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import OF_NODES, OF_STEPS, Taken
from kvfence.protocol.step import Node, Step
from kvfence.protocol.transitions import DecodePhase, PrefillPhase

WHOLE = frozenset({"accounting"})
"""Sums over all pages: a part says nothing of them."""

_OF_THE_QUEUE = frozenset({"cache-makes-room", "waiting-is-fifo"})
"""About who comes first of all: asked of the whole, where its queue or its room changed."""

_OF_THE_OLDEST = frozenset({"oldest-stays"})

_OF_HOLDERS = frozenset({"holders-agree", "holders-share-a-salt", "held-stays"})
"""About all who hold the touched lots, whom a step need not name."""

_ELSEWHERE = WHOLE | _OF_THE_QUEUE | _OF_THE_OLDEST | _OF_HOLDERS
_NODES_IN_PART = tuple(p for p in OF_NODES if p.name not in _ELSEWHERE)
_STEPS_IN_PART = tuple(p for p in OF_STEPS if p.name not in _ELSEWHERE)
_QUEUE_OF_NODES = tuple(p for p in OF_NODES if p.name in _OF_THE_QUEUE)
_QUEUE_OF_STEPS = tuple(p for p in OF_STEPS if p.name in _OF_THE_QUEUE)
_HOLDERS_OF_NODES = tuple(p for p in OF_NODES if p.name in _OF_HOLDERS)
_HOLDERS_OF_STEPS = tuple(p for p in OF_STEPS if p.name in _OF_HOLDERS)
_OLDEST = tuple(p for p in OF_STEPS if p.name in _OF_THE_OLDEST)


def broken_in_part(taken: Taken) -> list[str]:
    """Name the properties that this step breaks; those of ``WHOLE`` are not asked.

    Where lives changed, which every entry depends on, everything is asked of the whole.
    """
    before, after = taken.before, taken.step.node
    if after is before and not taken.step.commands:
        return []
    if after.lives is not before.lives:
        broken = [p.name for p in OF_NODES if not p.holds(after)]
        return broken + [p.name for p in OF_STEPS if not p.holds(taken)]
    cut = _Cut(before, after, named(before, taken.event, taken.step), taken.step)
    part = cut.taken(taken)
    broken = [p.name for p in _NODES_IN_PART if not p.holds(part.step.node)]
    broken += [p.name for p in _STEPS_IN_PART if not p.holds(part)]
    if cut.serials and isinstance(before, PrefillNode):
        held = cut.held(taken)
        broken += [p.name for p in _HOLDERS_OF_NODES if not p.holds(held.step.node)]
        broken += [p.name for p in _HOLDERS_OF_STEPS if not p.holds(held)]
    if not isinstance(before, GatewayNode) and not isinstance(after, GatewayNode):
        broken += [p.name for p in _QUEUE_OF_NODES if after.waiting and not p.holds(after)]
        if before.waiting is not after.waiting:
            broken += [p.name for p in _QUEUE_OF_STEPS if not p.holds(taken)]
    if any(_preempted(h) for h in part.step.node.handoffs.values()):
        broken += [p.name for p in _OLDEST if not p.holds(taken)]
    return broken


def _preempted(handoff: object) -> bool:
    return isinstance(handoff, DecodeHandoff) and handoff.ending is EndReason.PREEMPTED


# ---- what a step names -------------------------------------------------------------------------------------------


def named(before: Node, event: Event, step: Step) -> set[AttemptId]:
    """Give every attempt that an event, its commands or its decisions name."""
    attempts = set(_of_event(before, event))
    for command in step.commands:
        attempts.update(_of_command(command))
    attempts.update(decision.attempt for decision in step.decisions if decision.attempt is not None)
    return attempts


def _of_event(before: Node, event: Event) -> Iterator[AttemptId]:
    match event:
        case Received(envelope=envelope):
            attempt = getattr(envelope.message, "attempt", None)
        case PassBegan(attempts=attempts):
            yield from attempts
            return
        case PassEnded(id=pass_id):
            yield from () if isinstance(before, GatewayNode) else before.passes.get(pass_id, ())
            return
        case ClientGone(request=request):
            attempt = before.current.get(request) if isinstance(before, GatewayNode) else None
        case _:
            attempt = getattr(event, "attempt", None)
    if attempt is not None:
        yield attempt


def _of_command(command: Command) -> Iterable[AttemptId]:
    attempt = getattr(getattr(command, "message", command), "attempt", None)
    return getattr(command, "attempts", ()) if attempt is None else (attempt,)


def changed(before: Mapping[AttemptId, object], after: Mapping[AttemptId, object]) -> set[AttemptId]:
    """Give the attempts of which two tables hold different entries: entries never change, so another is another one."""
    new = {attempt for attempt, entry in after.items() if before.get(attempt) is not entry}
    return new.union(before.keys() - after.keys())


# ---- the part ----------------------------------------------------------------------------------------------------


class _Cut:
    """Cuts nodes down to what a step touched."""

    def __init__(self, before: Any, after: Any, attempts: set[AttemptId], step: Step) -> None:
        self.attempts = attempts
        self._before, self._after = before, after
        self._known = [h for node in (before, after) for a in attempts if (h := node.handoffs.get(a)) is not None]
        self.serials = {command.serial for command in step.commands if isinstance(command, Move)}
        self.serials.update(lot.serial for handoff in self._known for lot in _lots(handoff))

    def taken(self, taken: Taken) -> Taken:
        """Give the step as if its node held nothing but what it names."""
        small: Node
        then: Node
        if isinstance(self._before, GatewayNode):
            small, then = self._gateways(self._before), self._gateways(self._after)
        else:
            self._queue = self._before.waiting is not self._after.waiting or any(map(_waits, self._known))
            passes = (*self._before.passes, *self._after.passes)
            self._passes = {p: {h.attempt for h in self._known if p in h.passes} for p in passes}
            small, then = self._workers(self._before), self._workers(self._after)
        if isinstance(self._before, PrefillNode):
            then = self._without_rest(then)
        return Taken(small, taken.event, replace(taken.step, node=then))

    def held(self, taken: Taken) -> Taken:
        """Give the step as if there were no lots but the touched ones, and nobody but all who hold one."""
        pools = (self._before.pool, self._after.pool)
        entries = [entry for pool in pools for s in self.serials if (entry := pool.held.get(s)) is not None]
        attempts = self.attempts.union(*(entry.holders for entry in entries))
        small, then = self._holders(self._before, attempts), self._holders(self._after, attempts)
        return Taken(small, taken.event, replace(taken.step, node=then))

    def _gateways(self, node: GatewayNode) -> GatewayNode:
        requests = {handoff.request for handoff in self._known}
        current = {r: a for r in requests if (a := node.current.get(r)) is not None}
        return replace(node, handoffs=self._handoffs(node, self.attempts), current=current)

    def _workers(self, node: Any) -> Any:
        pool = self._pool(node)
        quarantined = {s: q for s in self.serials if (q := node.pool.quarantined.get(s)) is not None}
        waiting = tuple(a for a in node.waiting if a in self.attempts) if self._queue else ()
        passes = {p: tuple(self._passes[p]) for p in node.passes}
        handoffs = self._handoffs(node, self.attempts)
        pool = replace(pool, quarantined=quarantined)
        return replace(node, handoffs=handoffs, pool=pool, waiting=waiting, passes=passes)

    def _holders(self, node: Any, attempts: Iterable[AttemptId]) -> Any:
        handoffs = {a: self._of_lots(handoff) for a, handoff in self._handoffs(node, attempts).items()}
        return replace(node, handoffs=handoffs, pool=self._pool(node))

    def _of_lots(self, handoff: PrefillHandoff) -> PrefillHandoff:
        kept = tuple(lot for lot in handoff.lots if lot.serial in self.serials)
        return replace(handoff, shared=kept[:-1], lot=kept[-1] if kept else None)

    def _handoffs(self, node: Any, attempts: Iterable[AttemptId]) -> dict[AttemptId, Any]:
        return {a: h for a in attempts if (h := node.handoffs.get(a)) is not None}

    def _pool(self, node: Any) -> Pool:
        pool: Pool = node.pool
        return replace(pool, held={s: e for s in self.serials if (e := pool.held.get(s)) is not None})

    def _without_rest(self, node: Any) -> PrefillNode:
        """Take from the sums what stands for lots outside the part, which are as they were."""
        before: Pool = self._before.pool
        entries: list[HeldLot] = [entry for s in self.serials if (entry := before.held.get(s)) is not None]
        num_cached = before.num_cached - sum(entry.num_cached for entry in entries)
        num_idle = before.num_idle - sum(entry.is_idle for entry in entries)
        pool = replace(node.pool, num_cached=node.pool.num_cached - num_cached, num_idle=node.pool.num_idle - num_idle)
        part: PrefillNode = replace(node, pool=pool, cached_lots_max=node.cached_lots_max - num_idle)
        return part


def _lots(handoff: object) -> tuple[Lot, ...]:
    if isinstance(handoff, PrefillHandoff):
        return handoff.lots
    if isinstance(handoff, DecodeHandoff) and handoff.remote is not None:
        return (handoff.remote, *handoff.own)
    return ()


def _waits(handoff: DecodeHandoff | PrefillHandoff) -> bool:
    return handoff.phase is DecodePhase.WAITING or handoff.phase is PrefillPhase.WAITING
