"""What holds at decode: of attempts, of the pages of its pool, and of what lies in them."""

from kvfence.prove.invariant.conjunct import conjunct
from kvfence.prove.invariant.fields import (
    ADOPTED,
    CLOSED,
    FREE,
    GRANTED,
    HEAD,
    LANDED,
    LOST,
    NONE,
    ORIGIN,
    OWN,
    P_CLOSED,
    P_NONE,
    P_SENT,
    QUARANTINED,
    RECEIPT,
    REMOTE,
    REVOKED,
    RUNNING,
    SECOND,
    SESSION,
    VERIFYING,
    WAITING,
    lives,
    origin_head,
    origin_tail,
    own_bytes,
    own_head,
    posts_no_more,
    within,
)
from kvfence.prove.invariant.logic import Logic, State, Term, among, implies

# ---- what is promised --------------------------------------------------------------------------------------------


@conjunct((), safety=True)
def no_leak(o: Logic, s: State) -> Term:
    """No token has left that was computed from bytes that were not its sequence's."""
    return o.no(s.leaked())


@conjunct(("attempt",), safety=True)
def pass_holds_pages(o: Logic, s: State, a: Term) -> Term:
    """A pass runs over sequences that hold their pages."""
    return implies(o, s.passing(a), s.decode(a) == RUNNING)


@conjunct(("attempt",), safety=True)
def layout_is_ours(o: Logic, s: State, a: Term) -> Term:
    """What runs was written in decode's layout."""
    return implies(o, among(o, s.decode(a), VERIFYING, RUNNING), s.layout(s.worker(s.manifest(a))))


@conjunct(("attempt",), safety=True)
def count_agrees(o: Logic, s: State, a: Term) -> Term:
    """What runs was sent with as many pages as were offered."""
    return implies(o, among(o, s.decode(a), VERIFYING, RUNNING), s.num_send(s.manifest(a)) == s.size(a))


# ---- attempts ----------------------------------------------------------------------------------------------------


@conjunct(("attempt",))
def own_manifest(o: Logic, s: State, a: Term) -> Term:
    """A hand-off is verified against its own manifest."""
    return implies(o, among(o, s.decode(a), VERIFYING, RUNNING), s.manifest(a) == a)


@conjunct(("attempt",))
def whole_grant(o: Logic, s: State, a: Term) -> Term:
    """Whoever is granted pages has all that its prompt needs; the tail's page goes once it is copied."""
    number, size, phase = s.num_table(a), s.size(a), s.decode(a)
    whole = implies(o, among(o, phase, GRANTED, VERIFYING, REVOKED), number == size)
    running = implies(o, phase == RUNNING, o.any(number == size, number == size - 1))
    return o.all(
        phase >= NONE, phase <= LOST, whole, running, implies(o, phase == WAITING, within(o, number, size + 1))
    )


@conjunct(("attempt",))
def grants_are_known(o: Logic, s: State, a: Term) -> Term:
    """A Dispatch can exist only for who was granted pages, and prefill works for those alone."""
    once = implies(o, among(o, s.decode(a), GRANTED, VERIFYING, RUNNING, REVOKED), s.granted(a))
    waits = implies(o, s.decode(a) == WAITING, o.no(s.granted(a)))
    anew = implies(o, s.decode(a) == NONE, o.any(s.over(a), o.no(s.granted(a))))
    works = implies(o, o.no(among(o, s.prefill(a), P_NONE, P_CLOSED)), s.granted(a))
    return o.all(once, waits, anew, works, implies(o, s.serial(a) > 0, s.granted(a)))


@conjunct(("attempt",))
def session_is_current(o: Logic, s: State, a: Term) -> Term:
    """Pages are held in the session that they were granted in."""
    holding = among(o, s.decode(a), GRANTED, VERIFYING, REVOKED)
    return o.all(implies(o, holding, s.session_of(a) == s.session()), s.session_of(a) <= s.session())


@conjunct(("attempt",))
def sent_is_over(o: Logic, s: State, a: Term) -> Term:
    """What is verified or runs was sent: prefill writes no more for it."""
    quiet = o.all(posts_no_more(o, s, a), o.no(s.batch(a)), o.no(s.unknown(a)), s.serial(a) > 0)
    return implies(o, among(o, s.decode(a), VERIFYING, RUNNING), quiet)


@conjunct(("attempt", "index"))
def sent_has_landed(o: Logic, s: State, a: Term, i: Term) -> Term:
    """Every page that a Sent speaks of has landed."""
    sent = o.any(among(o, s.decode(a), VERIFYING, RUNNING), s.sent(a), s.prefill(a) == P_SENT)
    return implies(o, o.all(sent, within(o, i, s.num_send(a))), s.write(a, i) == LANDED)


@conjunct(("attempt",))
def writers_are_known(o: Logic, s: State, a: Term) -> Term:
    """Decode knows who may write for an attempt, unless that process has ended."""
    held = among(o, s.decode(a), WAITING, GRANTED, VERIFYING, RUNNING, REVOKED)
    return implies(o, o.all(held, o.no(s.writer(s.placed(a)))), s.dead(s.placed(a)))


# ---- pages -------------------------------------------------------------------------------------------------------


@conjunct(("page",))
def page_has_owner(o: Logic, s: State, p: Term) -> Term:
    """What a page is agrees with what its owner is, and it stands in its owner's table."""
    a, i, kind = s.owner(p), s.index(p), s.page(p)
    listed = o.all(within(o, i, s.num_table(a)), s.table(a, i) == p)
    remote = implies(o, kind == REMOTE, o.all(among(o, s.decode(a), WAITING, GRANTED, VERIFYING), listed))
    adopted = implies(o, kind == ADOPTED, o.all(s.decode(a) == RUNNING, listed))
    own = implies(o, kind == OWN, among(o, s.decode(a), WAITING, GRANTED, VERIFYING, RUNNING))
    ended = o.any(among(o, s.decode(a), REVOKED, CLOSED, LOST), o.all(s.decode(a) == NONE, s.over(a)))
    gone = o.any(s.former(p), ended)
    return o.all(kind >= FREE, kind <= QUARANTINED, remote, adopted, own, implies(o, kind == QUARANTINED, gone))


@conjunct(("attempt", "index"))
def table_is_owned(o: Logic, s: State, a: Term, i: Term) -> Term:
    """Every page in a page table belongs to its attempt, and to it alone."""
    p, phase = s.table(a, i), s.decode(a)
    listed = o.all(within(o, i, s.num_table(a)), among(o, phase, WAITING, GRANTED, VERIFYING, RUNNING, REVOKED))
    kind = o.where(phase == RUNNING, ADOPTED, o.where(phase == REVOKED, QUARANTINED, REMOTE))
    return implies(o, listed, o.all(s.owner(p) == a, s.index(p) == i, s.page(p) == kind, o.no(s.former(p))))


@conjunct(("attempt", "index"))
def suspects_are_kept(o: Logic, s: State, a: Term, i: Term) -> Term:
    """A revoked page waits for the exit of whoever may write it."""
    listed = o.all(s.fence() != RECEIPT, s.decode(a) == REVOKED, within(o, i, s.num_table(a)))
    gone = o.all(s.dead(s.placed(a)), o.no(lives(o, s, a, i)))
    return implies(o, listed, o.any(s.suspect(s.table(a, i), s.placed(a)), gone))


@conjunct(("page",))
def start_is_quarantined(o: Logic, s: State, p: Term) -> Term:
    """Until the writers of a former life are fenced every page is in quarantine, and afterwards none is for that."""
    former = o.all(s.page(p) == QUARANTINED, s.former(p))
    return o.all(implies(o, o.no(s.started()), former), implies(o, s.former(p), o.no(s.started())))


@conjunct(("page",))
def strays_are_known(o: Logic, s: State, p: Term) -> Term:
    """A misdirected write under way comes from a life that decode knows as a writer."""
    by_writer = o.all(s.writer(s.stray_by(p)), o.any(s.fence() == SESSION, o.no(s.dead(s.stray_by(p)))))
    known = implies(o, s.stray(p) != 0, o.all(o.any(s.former(p), by_writer), s.fence() != RECEIPT))
    return o.all(known, s.stray(p) >= 0, s.stray(p) <= 3)


@conjunct(("page",))
def mismatch_is_kept(o: Logic, s: State, p: Term) -> Term:
    """A page that showed another's stamp stays in quarantine until whoever wrote it is fenced."""
    kept = o.all(s.page(p) == QUARANTINED, o.any(s.former(p), o.no(s.drains(p))))
    suspected = o.any(s.former(p), s.stray(p) == 0, s.suspect(p, s.stray_by(p)))
    return implies(o, s.noticed(p), o.all(kept, suspected))


# ---- bytes -------------------------------------------------------------------------------------------------------


@conjunct(("page",))
def tags_were_issued(o: Logic, s: State, p: Term) -> Term:
    """Every prefill tag in a head was issued: a new serial stands nowhere yet."""
    issued = o.all(s.head_serial(p) > 0, s.head_serial(p) < s.next_serial(s.head_life(p)))
    return implies(o, s.head_kind(p) == ORIGIN, issued)


@conjunct(("page",))
def head_comes_first(o: Logic, s: State, p: Term) -> Term:
    """Under its own head a page holds what its own write has landed so far, and nothing else."""
    a, i = s.owner(p), s.index(p)
    headed = o.all(among(o, s.page(p), REMOTE, ADOPTED), origin_head(o, s, p, a, i))
    write, broken = s.write(a, i), s.corrupted(a, i)
    first = o.all(s.first_of(p) == s.request(a), s.first_at(p) == i)
    second = o.all(s.second_of(p) == s.request(a), s.second_at(p) == i)
    landed_first = implies(o, o.all(write > HEAD, write <= LANDED), o.any(first, broken))
    landed_second = implies(o, o.all(write >= SECOND, write <= LANDED), o.any(second, broken))
    landed_tail = implies(o, write == LANDED, origin_tail(o, s, p, a, i))
    begun = o.all(write >= HEAD, s.stray(p) == 0)
    return implies(o, headed, o.all(begun, landed_first, landed_second, landed_tail))


@conjunct(("page",))
def adopted_is_own(o: Logic, s: State, p: Term) -> Term:
    """An adopted page that shows its own head holds its own bytes, and held them whenever they were read."""
    a, i = s.owner(p), s.index(p)
    headed = o.all(s.page(p) == ADOPTED, origin_head(o, s, p, a, i))
    return implies(o, headed, o.all(own_bytes(o, s, p, a, i), o.no(s.foul(p)), s.stray(p) == 0))


@conjunct(("page",))
def written_is_own(o: Logic, s: State, p: Term) -> Term:
    """So does a page that decode writes itself."""
    a = s.owner(p)
    headed = o.all(s.page(p) == OWN, s.decode(a) == RUNNING, own_head(o, s, p, a))
    bytes_own = o.all(s.first_of(p) == s.request(a), s.second_of(p) == s.request(a))
    waits = o.all(s.page(p) == OWN, s.decode(a) != RUNNING)
    clean = o.all(s.stray(p) == 0, o.no(s.foul(p)), implies(o, s.used(p), bytes_own))
    return o.all(implies(o, headed, clean), implies(o, waits, o.no(s.used(p))))


@conjunct(("page",))
def foul_is_being_read(o: Logic, s: State, p: Term) -> Term:
    """What a pass has read is remembered while it runs."""
    return implies(o, o.all(s.foul(p), among(o, s.page(p), REMOTE, ADOPTED, OWN)), s.passing(s.owner(p)))


AT_DECODE = (
    no_leak,
    pass_holds_pages,
    layout_is_ours,
    count_agrees,
    own_manifest,
    whole_grant,
    grants_are_known,
    session_is_current,
    sent_is_over,
    sent_has_landed,
    writers_are_known,
    page_has_owner,
    table_is_owned,
    suspects_are_kept,
    start_is_quarantined,
    strays_are_known,
    mismatch_is_kept,
    tags_were_issued,
    head_comes_first,
    adopted_is_own,
    written_is_own,
    foul_is_being_read,
)
