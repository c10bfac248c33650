"""Pages that several attempts of one tenant read: who holds them, whether they stay, and how they make room.

Each lot of prefill's pool has a set of holders, and released means that the last one left. Then verified pages stay,
SEALED and held by nobody, until a grant needs the room: a cache makes nobody wait. Which lots begin as a prompt does
is a hint of the driver (``driver/prefix.py``); the guards here do not trust it.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.commands import Move, Share
from kvfence.protocol.handoff import PrefillHandoff
from kvfence.protocol.lots import HeldLot, Lot, Pool, Quarantined, free_pages, grant_lot, put_held, quarantine_lot
from kvfence.protocol.transitions import PageMove
from kvfence.protocol.turn import Turn

# ---- taking ------------------------------------------------------------------------------------------------------


def present(pool: Pool, handoff: PrefillHandoff, pages_max: int) -> tuple[Lot, ...]:
    """Give what is still there of the prefix that the driver found, at most so many pages."""
    there: dict[int, Lot] = {}
    for serial, num_pages in handoff.found:
        entry, wanted = pool.held.get(serial), min(num_pages, pages_max)
        if entry is None or entry.bad or wanted < 1 or serial in there:
            break
        lot = Lot(serial, entry.lot.pages[:wanted])
        there[serial] = lot
        pages_max -= len(lot.pages)
        if len(lot.pages) < num_pages:
            break  # what followed these pages follows them no more
    return tuple(there.values())


def agreed(turn: Turn, pool: Pool, handoff: PrefillHandoff, lots: tuple[Lot, ...]) -> tuple[Lot, ...]:
    """Give the first of these lots, up to the one that belongs to another or was not verified."""
    for number, lot in enumerate(lots):
        entry = pool.held[lot.serial]
        same = bool(handoff.salt) and entry.salt == handoff.salt
        if not turn.ask("tenant-salt", handoff.attempt, same):
            return lots[:number]
        if not turn.ask("verified-before-shared", handoff.attempt, entry.verified):
            return lots[:number]
    return lots


def has_room(pool: Pool, shared: tuple[Lot, ...], num_pages: int) -> bool:
    """Would so many pages, these among them, be there if nothing were cached?"""
    num_shared = sum(len(lot.pages) for lot in shared)
    taken = sum(max(0, len(lot.pages) - pool.held[lot.serial].num_held) for lot in shared)
    return num_pages - num_shared <= pool.num_free + pool.num_cached - taken


def grant_held(
    turn: Turn, pool: Pool, handoff: PrefillHandoff, shared: tuple[Lot, ...], num_pages: int
) -> tuple[Pool, Lot]:
    """Hold the shared pages and grant the attempt so many others; what nobody holds makes room."""
    # A lot is more recently used than those that hang on it, so that it is evicted after them.
    holding = [_held_by(pool, lot, handoff.attempt) for lot in reversed(shared)]
    if pool.num_free < num_pages:
        pool, holding = evict(turn, put_held(pool, *holding), num_pages), []
    pool, lot = grant_lot(pool, num_pages)
    turn.do(Move(PageMove.GRANT, lot.serial, lot.pages))
    return put_held(pool, *holding, HeldLot(lot, handoff.salt, {handoff.attempt: num_pages})), lot


def _held_by(pool: Pool, lot: Lot, attempt: AttemptId) -> HeldLot:
    entry = pool.held[lot.serial]
    return replace(entry, holders={**entry.holders, attempt: len(lot.pages)})


def evict(turn: Turn, pool: Pool, num_pages: int) -> Pool:
    """Free pages that nobody holds, of the least recently used lot first and there the last, until so many are free."""
    for entry in pool.held.values():
        missing = num_pages - pool.num_free
        if missing <= 0:
            break
        if entry.num_cached:
            pool = _trim(turn, pool, entry, max(entry.num_held, len(entry.lot.pages) - missing))
    return pool


def bound_lots(turn: Turn, pool: Pool, lots_max: int) -> Pool:
    """Free the least recently used lots that nobody holds until there are at most so many of them."""
    for entry in pool.held.values():
        if pool.num_idle <= lots_max:
            break
        if entry.is_idle:
            pool = _trim(turn, pool, entry, 0)
    return pool


def _trim(turn: Turn, pool: Pool, entry: HeldLot, num_left: int) -> Pool:
    kept, going = entry.lot.pages[:num_left], entry.lot.pages[num_left:]
    turn.do(Move(PageMove.RELEASE, entry.lot.serial, going))
    return put_held(free_pages(pool, going), replace(entry, lot=replace(entry.lot, pages=kept)), used=False)


# ---- leaving -----------------------------------------------------------------------------------------------------


def leave(turn: Turn, pool: Pool, handoff: PrefillHandoff, page_size: int, us: Incarnation) -> Pool:
    """Take an attempt, which is done with its pages, from the holders of every lot it held."""
    after: list[HeldLot] = []
    for lot in reversed(handoff.lots):
        entry = pool.held[lot.serial]
        holders = {attempt: n for attempt, n in entry.holders.items() if attempt != handoff.attempt}
        own = lot is handoff.lot
        verified = entry.verified or (own and handoff.committed)
        entry = replace(entry, holders=holders, verified=verified, quiet=entry.quiet and handoff.source_quiet)
        shareable = _filled(handoff, entry, page_size) if own else entry.lot.pages
        pool, entry = _let_go(turn, pool, handoff.attempt, entry, shareable)
        if entry.bad or not entry.quiet:
            pool, entry = _put_aside(turn, pool, handoff.attempt, entry, us)
        after.append(entry)
    pool = put_held(pool, *after)
    kept = pool.held.get(handoff.lot.serial) if handoff.lot is not None else None
    if kept is not None and kept.num_cached:
        turn.do(Share(handoff.attempt, kept.lot.serial, handoff.num_shared + handoff.num_known, len(kept.lot.pages)))
    return pool


def _filled(handoff: PrefillHandoff, entry: HeldLot, page_size: int) -> tuple[int, ...]:
    """The own pages that are full of tokens and sealed, without those whose like the driver knows already."""
    num_full = min(handoff.num_sealed, handoff.num_tokens // page_size) - handoff.num_shared
    return entry.lot.pages[0 if entry.holders else handoff.num_known : num_full]


def _let_go(
    turn: Turn, pool: Pool, attempt: AttemptId, entry: HeldLot, shareable: tuple[int, ...]
) -> tuple[Pool, HeldLot]:
    """Keep what others hold, and of verified lots what may be shared; free the rest."""
    if entry.bad or not entry.quiet:
        return pool, entry
    stays = entry.lot.pages[: entry.num_held]
    if entry.salt and turn.ask("verified-before-shared", attempt, entry.verified):
        stays = max(stays, shareable, key=len)
    return _free_but(turn, pool, entry, stays)


def _free_but(turn: Turn, pool: Pool, entry: HeldLot, stays: tuple[int, ...]) -> tuple[Pool, HeldLot]:
    left = set(stays)
    going = tuple(page for page in entry.lot.pages if page not in left)
    if going:
        turn.do(Move(PageMove.RELEASE, entry.lot.serial, going))
        pool = free_pages(pool, going)
    return pool, replace(entry, lot=replace(entry.lot, pages=stays))


def _put_aside(turn: Turn, pool: Pool, attempt: AttemptId, entry: HeldLot, us: Incarnation) -> tuple[Pool, HeldLot]:
    """Quarantine, once its last holder left, what a failed batch may still read or whose stamps did not match."""
    if entry.holders:
        return pool, entry
    sound = not entry.bad or turn.ask("quarantine-on-mismatch", attempt, holds=False)
    if sound and entry.quiet:
        return _free_but(turn, pool, entry, ())
    turn.do(Move(PageMove.REVOKE, entry.lot.serial, entry.lot.pages))
    pool = quarantine_lot(pool, Quarantined(entry.lot, attempt, frozenset({us}), drains=False))
    return pool, replace(entry, lot=replace(entry.lot, pages=()))


# ---- what is known of a lot --------------------------------------------------------------------------------------


def doubt(pool: Pool, lots: Iterable[Lot]) -> Pool:
    """A hand-off that carried these lots was not taken: nobody else may share them."""
    return put_held(pool, *(replace(pool.held[lot.serial], verified=False) for lot in lots), used=False)


def taint(pool: Pool, lots: Iterable[Lot], bad: Iterable[int]) -> tuple[Pool, set[AttemptId]]:
    """A page of these lots is another's: give the pool in which nobody shares its lot, and all who hold that."""
    pages = set(bad)
    tainted = [pool.held[lot.serial] for lot in lots if not pages.isdisjoint(lot.pages)]
    holders = {attempt for entry in tainted for attempt in entry.holders}
    return put_held(pool, *(replace(e, bad=True, verified=False) for e in tainted), used=False), holders
