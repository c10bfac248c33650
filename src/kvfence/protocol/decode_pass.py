"""Forward passes at decode: growth before, and after it the decision which tokens leave."""

from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId
from kvfence.protocol.commands import Emit, Grew, Move, RunPass
from kvfence.protocol.decode_end import end, end_running
from kvfence.protocol.decode_state import DecodeNode, put
from kvfence.protocol.events import PassBegan, PassEnded
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.lots import grant_lot
from kvfence.protocol.messages import EndReason
from kvfence.protocol.transitions import DecodePhase, PageMove
from kvfence.protocol.turn import Turn


def on_pass_began(turn: Turn, node: DecodeNode, event: PassBegan) -> DecodeNode:
    """Grow the sequences of a pass, oldest first, preempting the youngest where pages are short."""
    if event.id <= node.last_pass:
        raise LocalProtocolError("passes are numbered upwards")
    _require_running(node, event.attempts)
    wanted = dict(event.grow)
    taking: list[AttemptId] = []
    node = replace(node, last_pass=event.id)
    for attempt in sorted(event.attempts, key=lambda a: node.handoffs[a].order):
        if node.handoffs[attempt].phase is not DecodePhase.RUNNING:
            continue  # preempted for an older one
        num_pages = wanted.get(attempt, 0)
        node = _make_room(turn, node, attempt, num_pages)
        if num_pages > node.pool.num_free or node.handoffs[attempt].phase is not DecodePhase.RUNNING:
            continue
        node = _grow(turn, node, attempt, num_pages)
        taking.append(attempt)
    for attempt in taking:
        handoff = node.handoffs[attempt]
        node = put(node, replace(handoff, passes=handoff.passes | {event.id}))
    turn.do(RunPass(event.id, tuple(taking)))
    return replace(node, passes={**node.passes, event.id: tuple(taking)}) if taking else node


def _require_running(node: DecodeNode, attempts: tuple[AttemptId, ...]) -> None:
    for attempt in attempts:
        handoff = node.handoffs.get(attempt)
        if handoff is None or handoff.phase is not DecodePhase.RUNNING or handoff.ending is not None:
            raise LocalProtocolError("a pass takes running sequences only")
        if handoff.passes:
            raise LocalProtocolError("a sequence is in one pass at a time")


def _make_room(turn: Turn, node: DecodeNode, attempt: AttemptId, num_pages: int) -> DecodeNode:
    """Preempt the youngest until there is room; the oldest is never preempted and waits instead."""
    while num_pages > node.pool.num_free:
        running = [h for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING and not h.passes]
        youngest = max(running, key=lambda h: h.order)
        oldest = min((h.order for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING))
        if youngest.order == oldest or youngest.order < node.handoffs[attempt].order:
            return node
        node = end(turn, node, youngest.attempt, EndReason.PREEMPTED)
        if youngest.attempt == attempt:
            return node
    return node


def _grow(turn: Turn, node: DecodeNode, attempt: AttemptId, num_pages: int) -> DecodeNode:
    if num_pages == 0:
        return node
    pool, lot = grant_lot(node.pool, num_pages)
    handoff = node.handoffs[attempt]
    turn.do(Move(PageMove.GRANT, lot.serial, lot.pages), Grew(attempt, lot.serial, lot.pages))
    return replace(put(node, replace(handoff, own=(*handoff.own, lot))), pool=pool)


def on_pass_ended(turn: Turn, node: DecodeNode, event: PassEnded) -> DecodeNode:
    """Let out the tokens of sequences whose every page still carried the expected stamp; end the others."""
    if event.id not in node.passes:
        raise LocalProtocolError("a pass ends once, after it began")
    passes = dict(node.passes)
    attempts = passes.pop(event.id)
    node = replace(node, passes=passes)
    bad, finished = dict(event.bad), dict(event.finished)
    emit: list[AttemptId] = []
    over: list[AttemptId] = []
    for attempt in attempts:
        handoff = node.handoffs.get(attempt)
        if handoff is None or handoff.phase is not DecodePhase.RUNNING:
            continue  # released under the running pass: only where guard pass-ended is away
        handoff = replace(handoff, passes=handoff.passes - {event.id})
        handoff = _judge(turn, handoff, bad.get(attempt, ()), failed=attempt in event.failed)
        if handoff.ending is None:
            emit.append(attempt)
            handoff = replace(handoff, num_emitted=handoff.num_emitted + 1, ending=finished.get(attempt))
        if handoff.ending is not None:
            over.append(attempt)
        node = put(node, handoff)
    turn.do(Emit(event.id, tuple(emit)))
    for attempt in over:
        node = end_running(turn, node, node.handoffs[attempt])
    return node


def _judge(turn: Turn, handoff: DecodeHandoff, bad: tuple[int, ...], *, failed: bool) -> DecodeHandoff:
    if not turn.ask("stamp-at-read", handoff.attempt, not bad):
        return replace(handoff, ending=EndReason.STAMP_MISMATCH, bad=frozenset(bad))
    if failed and handoff.ending is None:
        return replace(handoff, ending=EndReason.MODEL_ERROR)
    return handoff
