"""What happens at decode, as ``protocol/decode*.py`` does it: each step there is a few of these, or none.

An action says less than the code does wherever saying less is safe: an offer may come at any time and as often as it
likes, an attempt may end in any phase for any reason, the gateway forgets nothing and forbids nothing.
"""

from kvfence.prove.invariant.action import Effect, Guards, action
from kvfence.prove.invariant.fields import (
    ADOPTED,
    BY_DECODE,
    CLOSED,
    FREE,
    GRANTED,
    LOST,
    NONE,
    OWN,
    QUARANTINED,
    RECEIPT,
    REMOTE,
    REVOKED,
    RUNNING,
    VERIFYING,
    WAITING,
    origin_head,
    origin_tail,
    own_bytes,
    own_digest,
    own_head,
    within,
)
from kvfence.prove.invariant.logic import Field, Logic, State, Term, among, at, implies

# ---- offers and grants -------------------------------------------------------------------------------------------


@action("attempt")
def offer(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """An offer is queued."""
    current = o.no(s.over(a)) if g.on("attempt-is-current", "decode") else True
    may = o.all(s.decode(a) == NONE, current, s.writer(s.placed(a)))
    return Effect(may, s.but(decode=at(o, s.decode, a, WAITING), num_table=at(o, s.num_table, a, 0)))


@action("attempt")
def close_unoffered(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A cancel comes before its offer, and is remembered."""
    return Effect(s.decode(a) == NONE, s.but(decode=at(o, s.decode, a, CLOSED)))


@action("attempt", "page")
def grant_page(o: Logic, s: State, g: Guards, a: Term, p: Term) -> Effect:
    """A free page becomes the next one that prefill may write for an attempt."""
    i = s.num_table(a)
    may = o.all(s.decode(a) == WAITING, i < s.size(a), s.page(p) == FREE)
    listed = s.but(table=at(o, s.table, a, i, p), num_table=at(o, s.num_table, a, i + 1))
    owned = listed.but(owner=at(o, s.owner, p, a), index=at(o, s.index, p, i), foul=at(o, s.foul, p, False))
    return Effect(may, owned.but(page=at(o, s.page, p, REMOTE)))


@action("attempt", "page")
def grant_own(o: Logic, s: State, g: Guards, a: Term, p: Term) -> Effect:
    """A free page becomes decode's own to write, for the copy of a tail or what is generated."""
    may = o.all(s.decode(a) == WAITING, s.page(p) == FREE)
    owned = s.but(page=at(o, s.page, p, OWN), owner=at(o, s.owner, p, a), foul=at(o, s.foul, p, False))
    return Effect(may, owned.but(used=at(o, s.used, p, False)))


@action("attempt")
def grant(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """All the pages are there: the gateway hears so, and a Dispatch may follow."""
    may = o.all(s.decode(a) == WAITING, s.num_table(a) == s.size(a))
    known = s.but(granted=at(o, s.granted, a, True), session_of=at(o, s.session_of, a, s.session()))
    return Effect(may, known.but(decode=at(o, s.decode, a, GRANTED)))


@action("attempt")
def end_waiting(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """An attempt ends before it got pages."""
    may = o.all(s.decode(a) == WAITING, s.num_table(a) == 0, no_page(o, s, a, OWN))
    return Effect(may, s.but(decode=at(o, s.decode, a, CLOSED)))


def no_page(o: Logic, s: State, a: Term, kind: int) -> Term:
    """The attempt owns no page of this kind."""
    return o.each(("page",), lambda p: o.no(o.all(s.owner(p) == a, s.page(p) == kind)))


# ---- verification and adoption -----------------------------------------------------------------------------------


@action("attempt", "attempt")
def take_sent(o: Logic, s: State, g: Guards, a: Term, c: Term) -> Effect:
    """A Sent arrives for an attempt: layout and count agree, and its pages are to be verified."""
    ours = (c == a) if g.on("attempt-is-current", "decode") else True
    layout = s.layout(s.worker(c)) if g.on("layout-agrees", "decode") else True
    count = (s.num_send(c) == s.size(a)) if g.on("count-matches", "decode") else True
    may = o.all(s.sent(c), s.decode(a) == GRANTED, ours, layout, count)
    return Effect(may, s.but(decode=at(o, s.decode, a, VERIFYING), manifest=at(o, s.manifest, a, c)))


def _verified(o: Logic, s: State, g: Guards, a: Term) -> Term:
    """Every remote page carries the promised stamps and bytes, as far as the guards that are on ask."""
    c = s.manifest(a)

    def page(i: Term) -> Term:
        p = s.table(a, i)
        stamped = o.all(origin_head(o, s, p, c, i), origin_tail(o, s, p, c, i))
        stamps = stamped if g.on("stamp-at-adopt", "decode") else True
        bytes_match = own_digest(o, s, p, c, i) if g.on("digest-matches", "decode") else True
        asks = g.on("stamp-at-adopt", "decode") or g.on("digest-matches", "decode")
        promised = (i < s.num_send(c)) if asks else True
        return implies(o, within(o, i, s.size(a)), o.all(promised, stamps, bytes_match))

    return o.each(("index",), page)


@action("attempt")
def adopt(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Verified pages are adopted; decode stamps its own and copies a partly filled last page there."""
    clear = o.each(("page",), lambda p: implies(o, _is_own(o, s, a, p), o.any(s.stray(p) == 0, s.noticed(p))))
    may = o.all(s.decode(a) == VERIFYING, _verified(o, s, g, a), clear)
    last = s.table(a, s.size(a) - 1)

    def copied(field: Field) -> Field:
        return lambda p: o.where(o.all(_is_own(o, s, a, p), s.partial(a)), field(last), field(p))

    def adopted(p: Term) -> Term:
        return o.where(o.all(s.owner(p) == a, s.page(p) == REMOTE), ADOPTED, s.page(p))

    after = s.but(decode=at(o, s.decode, a, RUNNING), page=adopted, **_headed(o, s, a))
    bytes_copied = after.but(first_of=copied(s.first_of), second_of=copied(s.second_of))
    used: Field = lambda p: o.any(s.used(p), o.all(_is_own(o, s, a, p), s.partial(a)))
    return Effect(may, bytes_copied.but(used=used))


def _is_own(o: Logic, s: State, a: Term, p: Term) -> Term:
    return o.all(s.owner(p) == a, s.page(p) == OWN)


def _headed(o: Logic, s: State, a: Term) -> dict[str, Field]:
    """Decode's own tag stands in every page that it will write for an attempt."""
    return {
        "head_kind": lambda p: o.where(_is_own(o, s, a, p), BY_DECODE, s.head_kind(p)),
        "head_own": lambda p: o.where(_is_own(o, s, a, p), a, s.head_own(p)),
    }


@action("attempt")
def give_up(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A hand-off ends before adoption: what prefill may still write goes to quarantine, the rest is free."""
    may = among(o, s.decode(a), GRANTED, VERIFYING)
    keeps = g.on("quarantine-on-revoke", "decode")
    return Effect(
        may, _revoked(o, s, a, keeps, lambda p, life: o.all(life == s.placed(a), s.writer(life)), drains=True)
    )


@action("attempt")
def give_up_mismatch(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Verification found other stamps or bytes: some writer is active, and nobody knows which."""
    may = s.decode(a) == VERIFYING
    keeps = g.on("quarantine-on-mismatch", "decode")
    after = _revoked(o, s, a, keeps, lambda p, life: s.writer(life), drains=False)
    marked: Field = lambda p: o.any(s.noticed(p), o.all(s.owner(p) == a, s.page(p) == REMOTE, s.stray(p) != 0))
    return Effect(may, after.but(noticed=marked))


def _revoked(o: Logic, s: State, a: Term, keeps: bool, suspects: Field, *, drains: bool) -> State:
    kept = s.fence() != RECEIPT if keeps else False
    ours: Field = lambda p: o.all(s.owner(p) == a, s.page(p) == REMOTE)
    freed: Field = lambda p: o.any(_is_own(o, s, a, p), ours(p))
    goes: Field = lambda p: o.where(o.all(ours(p), kept), QUARANTINED, o.where(freed(p), FREE, s.page(p)))
    return s.but(
        page=goes,
        suspect=lambda p, life: o.where(ours(p), suspects(p, life), s.suspect(p, life)),
        drains=lambda p: o.where(ours(p), drains, s.drains(p)),
        decode=at(o, s.decode, a, o.where(kept, REVOKED, CLOSED)),
    )


# ---- passes ------------------------------------------------------------------------------------------------------


@action("attempt")
def begin_pass(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A forward pass over a running sequence begins."""
    return Effect(o.all(s.decode(a) == RUNNING, o.no(s.passing(a))), s.but(passing=at(o, s.passing, a, True)))


@action("attempt", "page")
def grow(o: Logic, s: State, g: Guards, a: Term, p: Term) -> Effect:
    """A running sequence gets one more page of its own."""
    may = o.all(s.decode(a) == RUNNING, s.page(p) == FREE, o.any(s.stray(p) == 0, s.noticed(p)))
    owned = s.but(page=at(o, s.page, p, OWN), owner=at(o, s.owner, p, a), foul=at(o, s.foul, p, False))
    headed = owned.but(head_kind=at(o, s.head_kind, p, BY_DECODE), head_own=at(o, s.head_own, p, a))
    return Effect(may, headed.but(used=at(o, s.used, p, False)))


@action("attempt", "page", "int")
def write_pass(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """A pass writes a token's keys and values into a page of its own."""
    a, p, place = about
    may = o.all(s.passing(a), _is_own(o, s, a, p))
    first, first_at = o.where(s.used(p), s.first_of(p), s.request(a)), o.where(s.used(p), s.first_at(p), place)
    written = s.but(first_of=at(o, s.first_of, p, first), second_of=at(o, s.second_of, p, s.request(a)))
    placed = written.but(first_at=at(o, s.first_at, p, first_at), second_at=at(o, s.second_at, p, place))
    return Effect(may, placed.but(used=at(o, s.used, p, True)))


@action("attempt", "index")
def read_page(o: Logic, s: State, g: Guards, a: Term, i: Term) -> Effect:
    """A pass reads a page of the prompt, whatever lies in it now."""
    p = s.table(a, i)
    may = o.all(s.passing(a), within(o, i, s.num_table(a)), o.no(_is_copied(o, s, a, i)))
    return Effect(may, s.but(foul=at(o, s.foul, p, o.any(s.foul(p), o.no(own_bytes(o, s, p, a, i))))))


@action("attempt", "page")
def read_own(o: Logic, s: State, g: Guards, a: Term, p: Term) -> Effect:
    """A pass reads a page that decode wrote."""
    own = o.all(s.first_of(p) == s.request(a), s.second_of(p) == s.request(a))
    may = o.all(s.passing(a), _is_own(o, s, a, p), s.used(p))
    return Effect(may, s.but(foul=at(o, s.foul, p, o.any(s.foul(p), o.no(own)))))


def _matches(o: Logic, s: State, a: Term, p: Term) -> Term:
    """A page shows the head that its sequence's page table expects."""
    adopted = implies(o, s.page(p) == ADOPTED, origin_head(o, s, p, s.manifest(a), s.index(p)))
    return o.all(adopted, implies(o, s.page(p) == OWN, own_head(o, s, p, a)))


def _reads(o: Logic, s: State, a: Term, p: Term) -> Term:
    adopted = o.all(s.page(p) == ADOPTED, o.no(_is_copied(o, s, a, s.index(p))))
    return o.all(s.owner(p) == a, o.any(adopted, o.all(s.page(p) == OWN, s.used(p))))


def _is_copied(o: Logic, s: State, a: Term, i: Term) -> Term:
    """A partly filled last page is read from decode's copy."""
    return o.all(s.partial(a), i == s.size(a) - 1)


def _clean(o: Logic, s: State, g: Guards, a: Term) -> Term:
    matches = o.each(("page",), lambda p: implies(o, _reads(o, s, a, p), _matches(o, s, a, p)))
    return o.all(s.passing(a), matches if g.on("stamp-at-read", "decode") else True)


def _passed(o: Logic, s: State, a: Term) -> State:
    foul: Field = lambda p: o.all(s.foul(p), s.owner(p) != a)
    return s.but(passing=at(o, s.passing, a, False), foul=foul)


@action("attempt")
def emit(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A pass over pages that all showed their heads lets its token out."""
    return Effect(_clean(o, s, g, a), _passed(o, s, a))


@action("attempt", "page")
def emit_foul(o: Logic, s: State, g: Guards, a: Term, p: Term) -> Effect:
    """The same, where the pass had read foreign bytes: a leak."""
    may = o.all(_clean(o, s, g, a), s.foul(p), _reads(o, s, a, p))
    return Effect(may, _passed(o, s, a).but(leaked=lambda: True))


@action("attempt", "page", "pages")
def end_mismatched(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """A pass that met another's head ends its sequence: lots with such a page go to quarantine, the others are free."""
    a, met, kept = about
    found = o.each(("page",), lambda p: implies(o, _met(o, s, a, p), kept(p)))
    may = o.all(s.passing(a), _reads(o, s, a, met), o.no(_matches(o, s, a, met)), found)
    keeps = o.all(s.fence() != RECEIPT, g.on("quarantine-on-mismatch", "decode"))
    stays: Field = lambda p: o.all(_holds(o, s, a, p), kept(p), keeps)
    goes: Field = lambda p: o.where(stays(p), QUARANTINED, o.where(_holds(o, s, a, p), FREE, s.page(p)))
    marked: Field = lambda p: o.any(s.noticed(p), _met(o, s, a, p))
    after = _passed(o, s, a).but(page=goes, noticed=marked, decode=at(o, s.decode, a, CLOSED))
    suspects: Field = lambda p, life: o.where(stays(p), s.writer(life), s.suspect(p, life))
    drains: Field = lambda p: o.all(s.drains(p), o.no(stays(p)))
    return Effect(may, after.but(suspect=suspects, drains=drains))


def _met(o: Logic, s: State, a: Term, p: Term) -> Term:
    """The pass read this page and found another's head there, whose write is still landing."""
    return o.all(_reads(o, s, a, p), o.no(_matches(o, s, a, p)), s.stray(p) != 0)


def _holds(o: Logic, s: State, a: Term, p: Term) -> Term:
    return o.all(s.owner(p) == a, among(o, s.page(p), ADOPTED, OWN))


@action("attempt")
def end_pass(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A pass ends and lets nothing out."""
    return Effect(s.passing(a), _passed(o, s, a))


@action("attempt")
def end_running(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A sequence ends: its pages are free once no pass reads or writes them."""
    ended = o.no(s.passing(a)) if g.on("pass-ended", "decode") else True
    page: Field = lambda p: o.where(_holds(o, s, a, p), FREE, s.page(p))
    return Effect(o.all(s.decode(a) == RUNNING, ended), s.but(page=page, decode=at(o, s.decode, a, CLOSED)))


@action("attempt")
def drop_tail(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """The remote page whose copy decode writes on is free."""
    last = s.size(a) - 1
    may = o.all(s.decode(a) == RUNNING, s.num_table(a) == s.size(a), s.partial(a), o.no(s.passing(a)))
    return Effect(may, s.but(page=at(o, s.page, s.table(a, last), FREE), num_table=at(o, s.num_table, a, last)))


# ---- what ends quarantine ----------------------------------------------------------------------------------------


def _quarantined(o: Logic, s: State, a: Term, p: Term) -> Term:
    return o.all(s.owner(p) == a, s.page(p) == QUARANTINED, o.no(s.former(p)))


def _fenced(o: Logic, s: State, a: Term) -> State:
    page: Field = lambda p: o.where(_quarantined(o, s, a, p), FREE, s.page(p))
    noticed: Field = lambda p: o.all(s.noticed(p), o.no(_quarantined(o, s, a, p)))
    phase = o.where(s.decode(a) == REVOKED, CLOSED, s.decode(a))
    return s.but(page=page, noticed=noticed, decode=at(o, s.decode, a, phase))


@action("attempt")
def hear_drained(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Prefill said that nothing is outstanding: what waited for that is free."""
    drains = o.each(("page",), lambda p: implies(o, _quarantined(o, s, a, p), s.drains(p)))
    return Effect(o.all(s.drained(a), s.decode(a) == REVOKED, drains), _fenced(o, s, a))


@action("attempt")
def fence_lot(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Nobody is left who might write these pages."""

    def quiet(p: Term, life: Term) -> Term:
        return implies(o, _quarantined(o, s, a, p), o.no(s.suspect(p, life)))

    return Effect(o.each(("page", "life"), quiet), _fenced(o, s, a))


@action("attempt")
def free_late(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Quarantine ends by a clock, or because prefill says that it does not know."""
    may = False if g.on("drain-or-fence", "decode") else s.decode(a) == REVOKED
    return Effect(may, _fenced(o, s, a))


# ---- lives -------------------------------------------------------------------------------------------------------


@action("attempt")
def raise_floor(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Decode hears that an attempt is over for ever."""
    return Effect(True, s.but(over=at(o, s.over, a, True)))


@action("attempt")
def forget(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A closed attempt that is over for ever is forgotten."""
    return Effect(o.all(s.decode(a) == CLOSED, s.over(a)), s.but(decode=at(o, s.decode, a, NONE)))


@action("lives")
def restart(o: Logic, s: State, g: Guards, known: Term) -> Effect:
    """The decode worker dies; its successor finds the memory as it is and takes every page for unsafe."""
    keeps = g.on("fence-on-start", "decode")
    return Effect(
        True,
        s.but(
            decode=lambda a: o.where(s.granted(a), LOST, NONE),
            page=lambda p: QUARANTINED if keeps else FREE,
            former=lambda p: keeps,
            started=lambda: not keeps,
            noticed=lambda p: False,
            foul=lambda p: False,
            passing=lambda a: False,
            writer=known,
        ),
    )


DECODE_ACTIONS = (
    offer,
    close_unoffered,
    grant_page,
    grant_own,
    grant,
    end_waiting,
    take_sent,
    adopt,
    give_up,
    give_up_mismatch,
    begin_pass,
    grow,
    write_pass,
    read_page,
    read_own,
    emit,
    emit_foul,
    end_mismatched,
    end_pass,
    end_running,
    drop_tail,
    hear_drained,
    fence_lot,
    free_late,
    raise_floor,
    forget,
    restart,
)
