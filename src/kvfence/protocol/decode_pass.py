"""Forward passes at decode: growth before, and after it the decision which tokens leave."""

from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId
from kvfence.protocol.commands import Emit, Grew, Move, RunPass
from kvfence.protocol.decode_end import end, end_running
from kvfence.protocol.decode_state import DecodeNode, put, release
from kvfence.protocol.events import PassBegan, PassEnded
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.lots import Lot, grant_lot
from kvfence.protocol.messages import EndReason
from kvfence.protocol.transitions import DecodePhase, PageMove
from kvfence.protocol.turn import Turn


def on_pass_began(turn: Turn, node: DecodeNode, event: PassBegan) -> DecodeNode:
    """Grow the sequences of a pass, oldest first, preempting the youngest where pages are short."""
    if event.id <= node.last_pass:
        raise LocalProtocolError("passes are numbered upwards")
    _require_running(node, event.attempts)
    wanted = dict(event.grow)
    taking: list[DecodeHandoff] = []
    node = replace(node, last_pass=event.id)
    for attempt in sorted(event.attempts, key=lambda a: node.handoffs[a].order):
        if not _is_running(node, attempt):
            continue  # preempted for an older one: it may not ask for room any more
        num_pages = wanted.get(attempt, 0)
        node = _make_room(turn, node, attempt, num_pages)
        if num_pages > node.pool.num_free or not _is_running(node, attempt):
            continue  # the oldest waits, any other has given way
        handoff = node.handoffs[attempt]
        if num_pages:
            node, handoff = _grow(turn, node, handoff, num_pages)
        taking.append(replace(handoff, passes=handoff.passes | {event.id}))
    attempts = tuple(handoff.attempt for handoff in taking)
    turn.do(RunPass(event.id, attempts))
    return replace(put(node, *taking), passes={**node.passes, event.id: attempts}) if taking else node


def _is_running(node: DecodeNode, attempt: AttemptId) -> bool:
    handoff = node.handoffs.get(attempt)
    return handoff is not None and handoff.phase is DecodePhase.RUNNING


def _require_running(node: DecodeNode, attempts: tuple[AttemptId, ...]) -> None:
    for attempt in attempts:
        handoff = node.handoffs.get(attempt)
        if handoff is None or handoff.phase is not DecodePhase.RUNNING or handoff.ending is not None:
            raise LocalProtocolError("a pass takes running sequences only")
        if handoff.passes:
            raise LocalProtocolError("a sequence is in one pass at a time")


def _make_room(turn: Turn, node: DecodeNode, attempt: AttemptId, num_pages: int) -> DecodeNode:
    """Preempt the youngest until there is room; the oldest is never preempted and waits instead.

    Only sequences younger than the asking one go, or itself; those already taken into the pass are older.
    """
    while num_pages > node.pool.num_free:
        running = [h for h in node.handoffs.values() if h.phase is DecodePhase.RUNNING]
        youngest = max((h for h in running if not h.passes), key=lambda h: h.order)
        if youngest.order == min(h.order for h in running):
            return node
        node = end(turn, node, youngest.attempt, EndReason.PREEMPTED)
        if youngest.attempt == attempt:
            return node
    return node


def _grow(turn: Turn, node: DecodeNode, handoff: DecodeHandoff, num_pages: int) -> tuple[DecodeNode, DecodeHandoff]:
    pool, lot = grant_lot(node.pool, num_pages)
    turn.do(Move(PageMove.GRANT, lot.serial, lot.pages), Grew(handoff.attempt, lot.serial, lot.pages))
    return replace(node, pool=pool), replace(handoff, own=(*handoff.own, lot))


def on_pass_ended(turn: Turn, node: DecodeNode, event: PassEnded) -> DecodeNode:
    """Let out the tokens of sequences whose every page still carried the expected stamp; end the others."""
    if event.id not in node.passes:
        raise LocalProtocolError("a pass ends once, after it began")
    passes = dict(node.passes)
    attempts = passes.pop(event.id)
    bad, finished = dict(event.bad), dict(event.finished)
    emit: list[AttemptId] = []
    after: list[DecodeHandoff] = []
    tails: list[Lot] = []
    for attempt in attempts:
        handoff = node.handoffs.get(attempt)
        if handoff is None or handoff.phase is not DecodePhase.RUNNING:
            continue  # released under the running pass: only where guard pass-ended is away
        handoff = replace(handoff, passes=handoff.passes - {event.id})
        handoff = _judge(turn, handoff, bad.get(attempt, ()), failed=attempt in event.failed)
        if handoff.ending is None:
            emit.append(attempt)
            handoff, tail = _without_tail(node, handoff)
            tails += tail
            handoff = replace(handoff, num_emitted=handoff.num_emitted + 1, ending=finished.get(attempt))
        after.append(handoff)
    turn.do(Emit(event.id, tuple(emit)))
    node = release(turn, put(replace(node, passes=passes), *after), tails)
    over = [handoff for handoff in after if handoff.ending is not None]
    return end_running(turn, node, *over) if over else node


def _without_tail(node: DecodeNode, handoff: DecodeHandoff) -> tuple[DecodeHandoff, list[Lot]]:
    """Give up the remote page whose copy decode writes on: its sequence reads it no more, so one page was enough."""
    remote, page_size = handoff.remote, node.capacity.page_size
    whole = handoff.num_tokens // page_size
    if remote is None or handoff.num_tokens % page_size == 0 or len(remote.pages) == whole:
        return handoff, []
    kept = replace(remote, pages=remote.pages[:whole])
    return replace(handoff, remote=kept), [replace(remote, pages=remote.pages[whole:])]


def _judge(turn: Turn, handoff: DecodeHandoff, bad: tuple[int, ...], *, failed: bool) -> DecodeHandoff:
    if not turn.ask("stamp-at-read", handoff.attempt, not bad):
        return replace(handoff, ending=EndReason.STAMP_MISMATCH, bad=frozenset(bad))
    if failed and handoff.ending is None:
        return replace(handoff, ending=EndReason.MODEL_ERROR)
    return handoff
