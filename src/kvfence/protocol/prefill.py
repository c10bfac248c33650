"""The prefill node: admits a dispatch, reserves the whole prompt, seals pages and posts them in bounded batches.

Owner: every page of its pool; nobody else writes there. A page may be read by a posted write, so a source is
released only when its batches have ended. A prompt's first pages may be shared (``sharing.py``): they are read and
sent, never written. Read ``prefill_end.py`` next.
"""

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, BatchId, PassId
from kvfence.core.manifest import Manifest
from kvfence.protocol.admission import Capacity, prefill_fit
from kvfence.protocol.commands import Move, Post, RunPass, Send, StartPrefill, StartTimer
from kvfence.protocol.events import BatchEnded, PagesSealed, PassBegan, PassEnded, Received
from kvfence.protocol.handoff import PrefillHandoff, advance
from kvfence.protocol.lots import Lot, Pool
from kvfence.protocol.messages import Dispatch, EndReason, Failed, Sent
from kvfence.protocol.node import Lives
from kvfence.protocol.sharing import agreed, grant_held, has_room, present, taint
from kvfence.protocol.transitions import PageMove, PrefillPhase
from kvfence.protocol.turn import Turn


class PrefillNode(Struct, frozen=True):
    """Prefill's whole protocol state: O(live attempts and ``cached_lots_max``).

    ``cached_lots_max``: lots kept for others of their salt when nobody holds them; 0: none, and no page is shared.
    """

    lives: Lives
    capacity: Capacity
    layout: str
    pool: Pool
    batch_pages_max: int = 64
    cached_lots_max: int = 0
    handoffs: dict[AttemptId, PrefillHandoff] = {}
    waiting: tuple[AttemptId, ...] = ()
    passes: dict[PassId, tuple[AttemptId, ...]] = {}
    last_pass: PassId = PassId(0)
    last_batch: BatchId = BatchId(0)


def put(node: PrefillNode, *handoffs: PrefillHandoff) -> PrefillNode:
    """Store hand-offs in one copy of the table; forget those that are over."""
    table = node.handoffs.copy()
    for handoff in handoffs:
        if _is_over(node, handoff):
            table.pop(handoff.attempt, None)
        else:
            table[handoff.attempt] = handoff
    return replace(node, handoffs=table)


def _is_over(node: PrefillNode, handoff: PrefillHandoff) -> bool:
    """Closed, holding nothing, passed by the floor, and not needed to answer *unknown* to a repeated Abort."""
    if handoff.phase is not PrefillPhase.CLOSED or handoff.lot is not None or handoff.answer:
        return False
    return node.lives.below_floor(handoff.attempt) and not (handoff.unknown and handoff.decode in node.lives.peers)


# ---- dispatch ----------------------------------------------------------------------------------------------------


def on_dispatch(turn: Turn, node: PrefillNode, message: Dispatch, event: Received) -> PrefillNode:
    """Queue a dispatch that may run, or refuse it for good; decode hears either way."""
    known = node.handoffs.get(message.attempt)
    if known is not None:
        return _repeat(turn, node, known)
    if message.decode not in node.lives.peers:
        return node  # nobody to answer: its death has been told to the gateway, too
    salt = message.salt if node.cached_lots_max else ""
    handoff = PrefillHandoff(message.attempt, message.decode, message.num_tokens, grant=message.grant, salt=salt)
    handoff = replace(handoff, found=event.found)
    from_its_gateway = event.envelope.sender == message.attempt.gateway
    current = from_its_gateway and not node.lives.below_floor(message.attempt)
    if not turn.ask("attempt-is-current", message.attempt, current):
        reason: EndReason | None = EndReason.STALE
    else:
        reason = _refusal(turn, node, message, event.refusal)
    if reason is not None:
        failed = replace(advance(handoff, PrefillPhase.FAILED), reason=reason)
        turn.do(Send(message.decode, Failed(message.attempt, reason)))
        return put(node, failed)
    turn.do(StartTimer(message.attempt, message.remaining_ns))
    return replace(put(node, handoff), waiting=(*node.waiting, message.attempt))


def _repeat(turn: Turn, node: PrefillNode, known: PrefillHandoff) -> PrefillNode:
    """A dispatch seen before, or one whose abort overtook it, is never run again."""
    turn.ask("tombstone", known.attempt, known.phase is not PrefillPhase.CLOSED)
    on_resend(turn, node, known.attempt)
    return node


def _refusal(turn: Turn, node: PrefillNode, message: Dispatch, refusal: EndReason | None) -> EndReason | None:
    attempt = message.attempt
    if message.num_tokens < 1:
        return EndReason.REFUSED_AT_INTAKE
    if not turn.ask("layout-agrees", attempt, message.grant.layout == node.layout):
        return EndReason.LAYOUT_MISMATCH
    fit = prefill_fit(node.capacity, message.num_tokens)
    in_context = message.num_tokens <= node.capacity.context_tokens
    if not turn.ask("fits", attempt, fit.holds and in_context):
        return EndReason.DOES_NOT_FIT
    if not turn.ask("refusal-is-final", attempt, refusal is None):
        return refusal
    if node.capacity.num_pages(message.num_tokens) > len(message.grant.pages):
        return EndReason.COUNT_MISMATCH
    return None


def grant_waiting(turn: Turn, node: PrefillNode) -> PrefillNode:
    """Reserve whole prompts, first come first served; of a prompt's beginning take what may be shared.

    The page of the last token is never shared: it is computed, so that there is a first token.
    """
    while node.waiting:
        handoff = node.handoffs[node.waiting[0]]
        num_pages = node.capacity.num_pages(handoff.num_tokens)
        shared = present(node.pool, handoff, (handoff.num_tokens - 1) // node.capacity.page_size)
        if not has_room(node.pool, shared, num_pages):
            break
        shared = agreed(turn, node.pool, handoff, shared)
        if not has_room(node.pool, shared, num_pages):
            break
        node = _start(turn, replace(node, waiting=node.waiting[1:]), handoff, shared, num_pages)
    return node


def _start(
    turn: Turn, node: PrefillNode, handoff: PrefillHandoff, shared: tuple[Lot, ...], num_pages: int
) -> PrefillNode:
    num_shared = sum(len(lot.pages) for lot in shared)
    pool, lot = grant_held(turn, node.pool, handoff, shared, num_pages - num_shared)
    running = replace(advance(handoff, PrefillPhase.RUNNING), lot=lot, shared=shared, num_sealed=num_shared)
    turn.do(StartPrefill(handoff.attempt, lot.serial, lot.pages, handoff.num_tokens, shared))
    return post_next(turn, put(replace(node, pool=pool), running), handoff.attempt)


# ---- chunks ------------------------------------------------------------------------------------------------------


def on_pass_began(turn: Turn, node: PrefillNode, event: PassBegan) -> PrefillNode:
    """Note which attempts a chunk pass reads and writes."""
    if event.id <= node.last_pass:
        raise LocalProtocolError("passes are numbered upwards")
    taking: list[PrefillHandoff] = []
    for attempt in event.attempts:
        handoff = node.handoffs.get(attempt)
        if handoff is None or handoff.phase is not PrefillPhase.RUNNING or handoff.passes or handoff.computed:
            raise LocalProtocolError("a pass takes prompts that are being computed only")
        taking.append(replace(handoff, passes=frozenset({event.id})))
    turn.do(RunPass(event.id, event.attempts))
    node = put(node, *taking)
    return replace(node, last_pass=event.id, passes={**node.passes, event.id: event.attempts})


def on_pass_ended(turn: Turn, node: PrefillNode, event: PassEnded) -> tuple[PrefillNode, tuple[AttemptId, ...]]:
    """Judge the pass; give the node and the attempts that may have to end now.

    A shared page that is not what it was ends every attempt that has yet to read or send it.
    """
    if event.id not in node.passes:
        raise LocalProtocolError("a pass ends once, after it began")
    passes = dict(node.passes)
    attempts = passes.pop(event.id)
    bad, finished = dict(event.bad), dict(event.finished)
    after: list[PrefillHandoff] = []
    misread: set[AttemptId] = set()
    pool = node.pool
    for attempt in attempts:
        handoff = node.handoffs.get(attempt)
        if handoff is None:
            continue
        handoff = replace(handoff, passes=handoff.passes - {event.id})
        if not turn.ask("stamp-at-read", attempt, not bad.get(attempt)):
            handoff = replace(handoff, reason=handoff.reason or EndReason.STAMP_MISMATCH)
            pool, holders = taint(pool, handoff.lots, bad[attempt])
            misread |= holders
        elif attempt in event.failed:
            handoff = replace(handoff, reason=handoff.reason or EndReason.MODEL_ERROR)
        else:
            handoff = replace(handoff, computed=attempt in finished)
        after.append(handoff)
    node = put(replace(node, passes=passes, pool=pool), *after)
    others = tuple(sorted(misread.difference(attempts)))
    return _misread(node, (*attempts, *others), misread), (*attempts, *others)


def _misread(node: PrefillNode, attempts: tuple[AttemptId, ...], misread: set[AttemptId]) -> PrefillNode:
    handoffs = (node.handoffs.get(attempt) for attempt in attempts if attempt in misread)
    running = [h for h in handoffs if h is not None and h.phase is PrefillPhase.RUNNING]
    return put(node, *(replace(h, reason=h.reason or EndReason.STAMP_MISMATCH) for h in running)) if running else node


def on_pages_sealed(turn: Turn, node: PrefillNode, event: PagesSealed) -> PrefillNode:
    """Seal the prompt's next pages and post them as far as the batch bound allows."""
    handoff = node.handoffs.get(event.attempt)
    if handoff is None or handoff.phase is not PrefillPhase.RUNNING or handoff.lot is None:
        return node
    num_shared, lot = handoff.num_shared, handoff.lot
    if not handoff.num_sealed < event.num_pages <= num_shared + len(lot.pages):
        raise LocalProtocolError("pages are sealed in order, each once")
    if not turn.ask("zero-tail", event.attempt, event.tails_zeroed):
        return put(node, replace(handoff, reason=EndReason.MODEL_ERROR))
    sealed = lot.pages[handoff.num_sealed - num_shared : event.num_pages - num_shared]
    turn.do(Move(PageMove.SEAL, lot.serial, sealed))
    return post_next(turn, put(node, replace(handoff, num_sealed=event.num_pages, digest=event.digest)), event.attempt)


# ---- batches -----------------------------------------------------------------------------------------------------


def post_next(turn: Turn, node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    """Post sealed pages: at most ``batch_pages_max`` outstanding for an attempt, none of them twice."""
    handoff = node.handoffs[attempt]
    num_pages = handoff.num_sealed - handoff.num_posted
    if num_pages == 0 or handoff.lot is None or handoff.grant is None:
        return node
    bounded = not handoff.batches and num_pages <= node.batch_pages_max
    if not turn.ask("batch-bound", attempt, bounded):
        if handoff.batches:
            return node
        num_pages = node.batch_pages_max
    batch, start = BatchId(node.last_batch + 1), handoff.num_posted
    pages = slice(start, start + num_pages)
    grant = handoff.grant
    turn.do(Post(attempt, batch, handoff.decode, handoff.pages[pages], grant.pages[pages], grant.session))
    posted = replace(handoff, num_posted=pages.stop, batches=(*handoff.batches, (batch, num_pages)))
    return replace(put(node, posted), last_batch=batch)


def on_batch_ended(turn: Turn, node: PrefillNode, event: BatchEnded) -> PrefillNode:
    """Count a batch that landed; after one that did not, nobody knows when its last write ends."""
    handoff = node.handoffs.get(event.attempt)
    batches = dict(handoff.batches) if handoff is not None else {}
    if handoff is None or event.batch not in batches:
        raise LocalProtocolError("a batch ends once, after it was posted")
    num_pages = batches.pop(event.batch)
    handoff = replace(handoff, batches=tuple(batches.items()))
    if not event.success:
        quiet = handoff.source_quiet and event.source_quiet
        reason = handoff.reason or EndReason.TRANSFER_FAILED
        return put(node, replace(handoff, unknown=True, source_quiet=quiet, reason=reason))
    node = put(node, replace(handoff, num_landed=handoff.num_landed + num_pages))
    return post_next(turn, node, event.attempt) if handoff.phase is PrefillPhase.RUNNING else node


def complete(turn: Turn, node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    """Say Sent once the whole prompt is computed and every batch of it has landed."""
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.phase is not PrefillPhase.RUNNING or handoff.lot is None or not handoff.computed:
        return node
    if handoff.reason is not None or handoff.num_landed < len(handoff.pages):
        return node
    sent = advance(handoff, PrefillPhase.SENT)
    turn.do(Send(handoff.decode, _sent(node, sent)))
    return put(node, sent)


def _sent(node: PrefillNode, handoff: PrefillHandoff) -> Sent:
    if handoff.lot is None or handoff.grant is None:
        raise LocalProtocolError("Sent needs pages and a grant")
    manifest = Manifest(
        num_tokens=handoff.num_tokens,
        origin=node.lives.incarnation,
        origin_serial=handoff.lot.serial,
        origin_pages=handoff.pages,
        layout=node.layout,
        digest=handoff.digest,
        pool_tokens=node.capacity.prefill_pages * node.capacity.page_size,
        context_tokens=node.capacity.context_tokens,
        shared=tuple((lot.serial, len(lot.pages)) for lot in handoff.shared),
    )
    return Sent(handoff.attempt, handoff.grant.serial, manifest)


def on_resend(turn: Turn, node: PrefillNode, attempt: AttemptId) -> PrefillNode:
    """Repeat Sent or Failed until decode answers."""
    handoff = node.handoffs.get(attempt)
    if handoff is None or handoff.decode not in node.lives.peers:
        return node
    if handoff.phase is PrefillPhase.SENT:
        turn.do(Send(handoff.decode, _sent(node, handoff)))
    elif handoff.phase is PrefillPhase.FAILED and handoff.reason is not None:
        turn.do(Send(handoff.decode, Failed(attempt, handoff.reason)))
    return node
