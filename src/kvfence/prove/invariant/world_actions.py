"""What happens between the workers: writes land part by part, go astray, break, stop and are fenced; messages are lost.

A write lands in address order: head, first half, second half, tail. It reads its source as it lands.
"""

from kvfence.prove.invariant.action import Effect, Guards, action
from kvfence.prove.invariant.fields import (
    ADOPTED,
    CLOSED,
    ENDED,
    EXIT,
    FIRST,
    FREE,
    GRANTED,
    HEAD,
    LANDED,
    LOST,
    ORIGIN,
    POSTED,
    QUARANTINED,
    RECEIPT,
    REMOTE,
    REVOKED,
    SECOND,
    SESSION,
    VERIFYING,
    lives,
    origin_head,
)
from kvfence.prove.invariant.logic import Field, Logic, State, Term, among, at, implies

# ---- writes ------------------------------------------------------------------------------------------------------


def _at_source(o: Logic, s: State, a: Term, i: Term) -> tuple[Term, Term, Term, Term]:
    """What a write carries now: its tag's life and serial, whose bytes, which page of them."""
    t, kept = s.source(a, i), s.captured(a, i)
    life = o.where(kept, s.worker(a), s.pool(t))
    serial = o.where(kept, s.serial(a), s.source_serial(t))
    return life, serial, o.where(kept, s.request(a), s.source_of(t)), o.where(kept, i, s.source_at(t))


def _head(o: Logic, s: State, a: Term, i: Term) -> State:
    p, (life, serial, _, _) = s.table(a, i), _at_source(o, s, a, i)
    kind = s.but(head_kind=at(o, s.head_kind, p, ORIGIN), head_life=at(o, s.head_life, p, life))
    return kind.but(head_serial=at(o, s.head_serial, p, serial), head_page=at(o, s.head_page, p, s.source(a, i)))


def _half(o: Logic, s: State, a: Term, i: Term, broken: Term, *, half: str) -> State:
    p, (_, _, of, place) = s.table(a, i), _at_source(o, s, a, i)
    names, places = s.fields[f"{half}_of"], s.fields[f"{half}_at"]
    of, place = o.where(broken, s.nobody(), of), o.where(broken, -1, place)
    damaged = at(o, s.corrupted, a, i, o.any(s.corrupted(a, i), broken))
    return s.but(**{f"{half}_of": at(o, names, p, of), f"{half}_at": at(o, places, p, place)}, corrupted=damaged)


def _tail(o: Logic, s: State, a: Term, i: Term) -> State:
    p, (life, serial, of, place) = s.table(a, i), _at_source(o, s, a, i)
    tagged = s.but(tail_life=at(o, s.tail_life, p, life), tail_serial=at(o, s.tail_serial, p, serial))
    stamped = tagged.but(tail_page=at(o, s.tail_page, p, s.source(a, i)))
    return stamped.but(digest_of=at(o, s.digest_of, p, of), digest_at=at(o, s.digest_at, p, place))


def _moved(o: Logic, s: State, a: Term, i: Term, to: int) -> State:
    return s.but(write=at(o, s.write, a, i, to))


@action("attempt", "index")
def land_head(o: Logic, s: State, g: Guards, a: Term, i: Term) -> Effect:
    """The head of a write lands. Assumed: a misdirected write that nobody noticed has landed whole by then."""
    p = s.table(a, i)
    clear = o.any(s.stray(p) == 0, s.noticed(p), s.page(p) == QUARANTINED)
    may = o.all(s.fence() != RECEIPT, s.write(a, i) == POSTED, clear)
    return Effect(may, _moved(o, _head(o, s, a, i), a, i, HEAD))


@action("attempt", "index", "bool")
def land_first(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """The first half of its bytes lands, sound or broken."""
    a, i, broken = about
    may = o.all(s.fence() != RECEIPT, s.write(a, i) == HEAD)
    return Effect(may, _moved(o, _half(o, s, a, i, broken, half="first"), a, i, FIRST))


@action("attempt", "index", "bool")
def land_second(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """The second half lands."""
    a, i, broken = about
    may = o.all(s.fence() != RECEIPT, s.write(a, i) == FIRST)
    return Effect(may, _moved(o, _half(o, s, a, i, broken, half="second"), a, i, SECOND))


@action("attempt", "index")
def land_tail(o: Logic, s: State, g: Guards, a: Term, i: Term) -> Effect:
    """The tail lands: the write has ended."""
    may = o.all(s.fence() != RECEIPT, s.write(a, i) == SECOND)
    return Effect(may, _moved(o, _tail(o, s, a, i), a, i, LANDED))


def _is_taken(o: Logic, s: State, a: Term, i: Term) -> Term:
    p = s.table(a, i)
    return o.all(s.owner(p) == a, s.page(p) == REMOTE, among(o, s.decode(a), GRANTED, VERIFYING))


@action("attempt", "index", "bool")
def land_whole(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """Where the receiver checks each write, one that is granted lands in one step."""
    a, i, broken = about
    may = o.all(s.fence() == RECEIPT, s.write(a, i) == POSTED, _is_taken(o, s, a, i))
    halves = _half(o, _half(o, _head(o, s, a, i), a, i, broken, half="first"), a, i, broken, half="second")
    return Effect(may, _moved(o, _tail(o, halves, a, i), a, i, LANDED))


@action("attempt", "index")
def go_astray(o: Logic, s: State, g: Guards, a: Term, i: Term) -> Effect:
    """A write goes to another page, and counts as landed; what it does there is a stray's."""
    return Effect(s.write(a, i) == POSTED, _moved(o, s, a, i, LANDED))


@action("attempt", "index")
def turn_away(o: Logic, s: State, g: Guards, a: Term, i: Term) -> Effect:
    """And one that is not ends there."""
    may = o.all(s.fence() == RECEIPT, lives(o, s, a, i), o.no(_is_taken(o, s, a, i)))
    return Effect(may, _moved(o, s, a, i, ENDED))


# ---- misdirected writes ------------------------------------------------------------------------------------------


@action("page", "life", "life", "int", "source")
def stray_head(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """A write that was meant for another page begins here: its head carries another tag than its victim's."""
    p, by, life, serial, t = about
    a, i = s.owner(p), s.index(p)
    issued = o.all(serial > 0, serial < s.next_serial(life))
    tag = o.all(life == s.worker(a), serial == s.serial(a), t == s.source(a, i))
    mine = o.all(tag, among(o, s.page(p), REMOTE, ADOPTED))
    writer = o.all(s.fence() != RECEIPT, s.writer(by), o.any(s.fence() == SESSION, o.no(s.dead(by))))
    may = o.all(writer, issued, o.no(mine), s.stray(p) == 0)
    headed = s.but(head_kind=at(o, s.head_kind, p, ORIGIN), head_life=at(o, s.head_life, p, life))
    tagged = headed.but(head_serial=at(o, s.head_serial, p, serial), head_page=at(o, s.head_page, p, t))
    begun = tagged.but(stray=at(o, s.stray, p, 1), stray_by=at(o, s.stray_by, p, by))
    return Effect(may, begun.but(noticed=at(o, s.noticed, p, o.all(s.noticed(p), s.suspect(p, by)))))


@action("page", "request", "int")
def stray_first(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """Its first half lands."""
    p, of, place = about
    landed = s.but(first_of=at(o, s.first_of, p, of), first_at=at(o, s.first_at, p, place))
    return Effect(s.stray(p) == 1, landed.but(stray=at(o, s.stray, p, 2)))


@action("page", "request", "int")
def stray_second(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """Its second half lands."""
    p, of, place = about
    landed = s.but(second_of=at(o, s.second_of, p, of), second_at=at(o, s.second_at, p, place))
    return Effect(s.stray(p) == 2, landed.but(stray=at(o, s.stray, p, 3)))


@action("page", "life", "int", "source", "request", "int")
def stray_tail(o: Logic, s: State, g: Guards, p: Term, *tag: Term) -> Effect:
    """Its tail lands: it is over."""
    life, serial, t, of, place = tag
    tagged = s.but(tail_life=at(o, s.tail_life, p, life), tail_serial=at(o, s.tail_serial, p, serial))
    stamped = tagged.but(tail_page=at(o, s.tail_page, p, t), digest_of=at(o, s.digest_of, p, of))
    ended = stamped.but(digest_at=at(o, s.digest_at, p, place), stray=at(o, s.stray, p, 0))
    return Effect(s.stray(p) == 3, ended)


# ---- lives and fences --------------------------------------------------------------------------------------------


@action("life")
def meet(o: Logic, s: State, g: Guards, life: Term) -> Effect:
    """Decode and a prefill worker are introduced."""
    return Effect(o.no(s.dead(life)), s.but(writer=at(o, s.writer, life, True)))


@action("life")
def reap(o: Logic, s: State, g: Guards, life: Term) -> Effect:
    """A prefill process has ended; where it wrote itself, its writes have ended with it."""
    gone = s.fence() != SESSION
    ended: Field = lambda a, i: o.all(gone, s.worker(a) == life, lives(o, s, a, i))
    write: Field = lambda a, i: o.where(ended(a, i), ENDED, s.write(a, i))
    stray: Field = lambda p: o.where(o.all(gone, s.stray_by(p) == life), 0, s.stray(p))
    return Effect(True, s.but(dead=at(o, s.dead, life, True), write=write, stray=stray))


@action("life")
def hear_exit(o: Logic, s: State, g: Guards, life: Term) -> Effect:
    """Decode hears that a writer is gone; where it was reaped and wrote itself, it is no suspect any more."""
    proof = s.dead(life) if g.on("drain-or-fence", "decode") else True
    suspect: Field = lambda p, other: o.all(s.suspect(p, other), other != life)
    waits: Field = lambda a: o.all(among(o, s.decode(a), GRANTED, VERIFYING), s.placed(a) == life)
    given_up = o.each(("attempt",), lambda a: o.no(waits(a)))
    may = o.all(s.fence() != SESSION, proof, given_up)
    return Effect(may, s.but(writer=at(o, s.writer, life, False), suspect=suspect))


@action("life")
def hear_exit_later(o: Logic, s: State, g: Guards, life: Term) -> Effect:
    """Over sessions a dead writer is forgotten once nothing of it can land."""
    quiet = o.each(("attempt", "index"), lambda a, i: o.no(o.all(s.worker(a) == life, lives(o, s, a, i))))
    stray = o.each(("page",), lambda p: implies(o, s.stray(p) != 0, s.stray_by(p) != life))
    may = o.all(s.fence() == SESSION, s.dead(life), quiet, stray)
    return Effect(may, s.but(writer=at(o, s.writer, life, False)))


@action()
def rebuild_session(o: Logic, s: State, g: Guards) -> Effect:
    """Decode rebuilds its receiving engine: nothing posted before can land, and all quarantine ends."""
    settled = o.each(("attempt",), lambda a: o.no(among(o, s.decode(a), GRANTED, VERIFYING)))
    write: Field = lambda a, i: o.where(lives(o, s, a, i), ENDED, s.write(a, i))
    page: Field = lambda p: o.where(s.page(p) == QUARANTINED, FREE, s.page(p))
    phase: Field = lambda a: o.where(s.decode(a) == REVOKED, CLOSED, s.decode(a))
    ended = s.but(write=write, stray=lambda p: 0, noticed=lambda p: False, former=lambda p: False)
    after = ended.but(page=page, decode=phase, session=lambda: s.session() + 1, started=lambda: True)
    return Effect(o.all(s.fence() == SESSION, settled), after)


@action()
def fence_start(o: Logic, s: State, g: Guards) -> Effect:
    """The supervisor's proof that no writer of a former life of decode is left, in flight or still to come."""
    ended: Field = lambda a, i: o.all(s.decode(a) == LOST, lives(o, s, a, i))
    write: Field = lambda a, i: o.where(ended(a, i), ENDED, s.write(a, i))
    page: Field = lambda p: o.where(s.former(p), FREE, s.page(p))
    stray: Field = lambda p: o.where(s.former(p), 0, s.stray(p))
    noticed: Field = lambda p: o.all(s.noticed(p), o.no(s.former(p)))
    after = s.but(page=page, stray=stray, noticed=noticed, former=lambda p: False, started=lambda: True, write=write)
    return Effect(s.fence() != SESSION, after)


# ---- messages ----------------------------------------------------------------------------------------------------


@action("attempt")
def lose_sent(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A Sent has been taken, or is lost."""
    return Effect(s.sent(a), s.but(sent=at(o, s.sent, a, False)))


@action("attempt")
def lose_drained(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A Drained has been taken, or is lost."""
    return Effect(s.drained(a), s.but(drained=at(o, s.drained, a, False)))


WORLD_ACTIONS = (
    land_head,
    land_first,
    land_second,
    land_tail,
    land_whole,
    go_astray,
    turn_away,
    stray_head,
    stray_first,
    stray_second,
    stray_tail,
    meet,
    reap,
    hear_exit,
    hear_exit_later,
    rebuild_session,
    fence_start,
    lose_sent,
    lose_drained,
)

__all__ = ["EXIT", "WORLD_ACTIONS", "origin_head"]
