"""What holds at prefill and of what is on its way from there: source pages, posted writes, Sent and Drained."""

from kvfence.prove.invariant.conjunct import conjunct
from kvfence.prove.invariant.fields import (
    ENDED,
    GRANTED,
    LANDED,
    LOST,
    P_ABORTING,
    P_CLOSED,
    P_NONE,
    P_RUNNING,
    P_SENT,
    P_WAITING,
    QUARANTINED,
    RECEIPT,
    REVOKED,
    S_FREE,
    S_GRANTED,
    S_QUARANTINED,
    S_SEALED,
    SESSION,
    UNPOSTED,
    lives,
    posts_no_more,
    within,
)
from kvfence.prove.invariant.logic import Logic, State, Term, among, implies

# ---- what is promised --------------------------------------------------------------------------------------------


@conjunct(("attempt", "index"), safety=True)
def no_stray_write(o: Logic, s: State, a: Term, i: Term) -> Term:
    """While a write may land, its page is granted to its attempt or in quarantine: never free, never another's."""
    held = o.all(among(o, s.decode(a), GRANTED, REVOKED), within(o, i, s.num_table(a)), s.writer(s.worker(a)))
    p = s.table(a, i)
    former = o.all(s.decode(a) == LOST, s.page(p) == QUARANTINED, s.former(p))
    return implies(o, o.all(lives(o, s, a, i), s.fence() != RECEIPT), o.any(held, former))


@conjunct(("attempt", "index"), safety=True)
def source_is_held(o: Logic, s: State, a: Term, i: Term) -> Term:
    """A posted write reads what it was posted for."""
    t = s.source(a, i)
    held = o.any(s.holds(a), o.all(s.source_state(t) == S_QUARANTINED, s.source_owner(t) == a, s.source_index(t) == i))
    bytes_own = o.all(s.source_of(t) == s.request(a), s.source_at(t) == i, s.source_serial(t) == s.serial(a))
    reading = o.all(lives(o, s, a, i), o.no(s.captured(a, i)))
    return implies(o, reading, o.all(held, bytes_own, s.pool(t) == s.worker(a)))


@conjunct(("source",), safety=True)
def sealed_has_no_slack(o: Logic, s: State, t: Term) -> Term:
    """Nothing of another request is sent behind the last token."""
    return implies(o, s.source_state(t) == S_SEALED, o.no(s.slack(t)))


@conjunct(("attempt",), safety=True)
def batch_is_bounded(o: Logic, s: State, a: Term) -> Term:
    """At most ``batch_pages_max`` writes of an attempt are outstanding."""
    return implies(o, s.batch(a), s.num_posted(a) - s.num_landed(a) <= s.batch_max())


@conjunct(("attempt",), safety=True)
def computing_holds_pages(o: Logic, s: State, a: Term) -> Term:
    """A chunk pass runs over prompts that hold their pages."""
    return implies(o, s.computing(a), s.holds(a))


# ---- what messages say -------------------------------------------------------------------------------------------


@conjunct(("attempt",), needs=("refusal-is-final",))
def sends_whole(o: Logic, s: State, a: Term) -> Term:
    """Prefill sends as many pages as were offered."""
    return implies(o, o.any(s.serial(a) > 0, s.prefill(a) == P_WAITING), s.num_send(a) == s.size(a))


@conjunct(("attempt",))
def sent_is_final(o: Logic, s: State, a: Term) -> Term:
    """Sent is said when nothing is outstanding, and nothing is posted afterwards."""
    quiet = o.all(posts_no_more(o, s, a), o.no(s.batch(a)), o.no(s.unknown(a)), s.serial(a) > 0)
    return implies(o, o.any(s.sent(a), s.prefill(a) == P_SENT), quiet)


@conjunct(("attempt", "index"))
def drained_is_quiet(o: Logic, s: State, a: Term, i: Term) -> Term:
    """Drained is said when no write is outstanding, none may still land, and none will be posted."""
    quiet = o.all(o.no(s.batch(a)), o.no(s.unknown(a)), o.no(lives(o, s, a, i)))
    return implies(o, s.drained(a), o.all(posts_no_more(o, s, a), quiet))


@conjunct(("attempt",))
def owed_is_closed(o: Logic, s: State, a: Term) -> Term:
    """Whoever owes decode an answer posts nothing more."""
    return implies(o, s.owes(a), o.any(among(o, s.prefill(a), P_ABORTING, P_CLOSED), s.dead(s.worker(a))))


@conjunct(("attempt",))
def may_write(o: Logic, s: State, a: Term) -> Term:
    """Prefill can post only for who is granted pages or has them in quarantine, or where it no longer can write."""
    fresh = o.all(s.prefill(a) == P_NONE, s.granted(a), o.no(s.forgotten(a)))
    going = o.all(o.any(fresh, among(o, s.prefill(a), P_WAITING, P_RUNNING)), o.no(s.dead(s.worker(a))))
    former = o.all(s.decode(a) == LOST, s.started())
    cannot = o.any(s.fence() == RECEIPT, o.all(s.fence() == SESSION, s.session_of(a) < s.session()), former)
    held = o.any(among(o, s.decode(a), GRANTED, REVOKED), o.all(s.decode(a) == LOST, o.no(s.started())))
    return implies(o, going, o.any(held, cannot))


@conjunct(("attempt",))
def worker_is_placed(o: Logic, s: State, a: Term) -> Term:
    """Who works on an attempt is whom the gateway named."""
    return s.worker(a) == s.placed(a)


@conjunct(("attempt",))
def over_is_quiet(o: Logic, s: State, a: Term) -> Term:
    """What prefill has sent or closed has nothing outstanding."""
    phases = o.all(s.prefill(a) >= P_NONE, s.prefill(a) <= P_CLOSED)
    over = among(o, s.prefill(a), P_SENT, P_CLOSED)
    return o.all(phases, implies(o, over, o.all(o.no(s.batch(a)), o.no(s.computing(a)))))


# ---- work --------------------------------------------------------------------------------------------------------


@conjunct(("attempt",))
def work_is_counted(o: Logic, s: State, a: Term) -> Term:
    """What is posted was sealed, what is sealed is to be sent, and work in hand holds pages."""
    counts = o.all(s.num_landed(a) >= 0, s.num_landed(a) <= s.num_posted(a), s.num_posted(a) <= s.num_sealed(a))
    bounded = o.all(s.num_sealed(a) <= s.num_send(a), s.num_send(a) <= s.size(a), s.size(a) >= 1)
    works = implies(o, s.prefill(a) == P_RUNNING, s.holds(a))
    held = implies(o, s.holds(a), o.all(s.serial(a) > 0, o.no(among(o, s.prefill(a), P_NONE, P_WAITING))))
    settled = o.any(s.batch(a), s.unknown(a), s.num_landed(a) == s.num_posted(a))
    return o.all(counts, bounded, works, held, settled, implies(o, s.batch(a), s.holds(a)), s.serial(a) >= 0)


@conjunct(("attempt",))
def fresh_is_untouched(o: Logic, s: State, a: Term) -> Term:
    """An attempt that prefill has not begun has posted nothing and said nothing."""
    fresh = o.any(o.all(s.prefill(a) == P_NONE, o.no(s.forgotten(a))), s.prefill(a) == P_WAITING)
    zero = o.all(s.serial(a) == 0, s.num_posted(a) == 0, s.num_sealed(a) == 0, s.num_landed(a) == 0)
    nothing = o.all(o.no(s.batch(a)), o.no(s.unknown(a)), o.no(s.holds(a)), o.no(s.sent(a)), s.quiet(a))
    return implies(o, fresh, o.all(zero, nothing))


@conjunct(("attempt", "index"))
def writes_are_counted(o: Logic, s: State, a: Term, i: Term) -> Term:
    """A write exists of what was posted, and may land only while its batch is out or has failed."""
    posted = implies(o, s.write(a, i) != UNPOSTED, within(o, i, s.num_posted(a)))
    out = o.any(o.all(s.batch(a), i >= s.num_landed(a)), s.unknown(a))
    return o.all(s.write(a, i) >= UNPOSTED, s.write(a, i) <= ENDED, posted, implies(o, lives(o, s, a, i), out))


@conjunct(("attempt", "index"))
def landed_is_landed(o: Logic, s: State, a: Term, i: Term) -> Term:
    """What counts as landed has landed."""
    return implies(o, within(o, i, s.num_landed(a)), s.write(a, i) == LANDED)


@conjunct(("attempt", "index"))
def quiet_is_captured(o: Logic, s: State, a: Term, i: Term) -> Term:
    """A write of a failed batch reads its source no more, or the source is known not to be quiet."""
    reading = o.all(lives(o, s, a, i), o.no(s.captured(a, i)))
    return implies(o, reading, o.any(o.all(s.batch(a), i >= s.num_landed(a)), o.no(s.quiet(a))))


@conjunct(("attempt", "index"))
def writers_live(o: Logic, s: State, a: Term, i: Term) -> Term:
    """Writes end with what fences them: their process, or the session that they were posted to."""
    alive = o.any(s.fence() == SESSION, o.no(s.dead(s.worker(a))))
    current = o.any(s.fence() != SESSION, s.session_of(a) == s.session())
    return implies(o, lives(o, s, a, i), o.all(alive, current, s.granted(a), s.serial(a) > 0))


# ---- source pages ------------------------------------------------------------------------------------------------


@conjunct(("attempt", "index"))
def source_table_is_owned(o: Logic, s: State, a: Term, i: Term) -> Term:
    """Every source page that an attempt holds is its own, under its serial; sealed ones hold its bytes."""
    t = s.source(a, i)
    ours = o.all(s.source_owner(t) == a, s.source_index(t) == i, s.pool(t) == s.worker(a))
    tagged = o.all(s.source_serial(t) == s.serial(a), among(o, s.source_state(t), S_GRANTED, S_SEALED))
    sealed = o.all(s.source_state(t) == S_SEALED, s.source_of(t) == s.request(a), s.source_at(t) == i)
    held = o.where(i < s.num_sealed(a), sealed, s.source_state(t) == S_GRANTED)
    return implies(o, o.all(s.holds(a), within(o, i, s.num_send(a))), o.all(ours, tagged, held))


@conjunct(("attempt", "index"))
def source_is_reserved(o: Logic, s: State, a: Term, i: Term) -> Term:
    """So are those that it has been given while it waits for the rest."""
    t = s.source(a, i)
    ours = o.all(s.source_owner(t) == a, s.source_index(t) == i, s.pool(t) == s.worker(a))
    waits = o.all(s.prefill(a) == P_WAITING, within(o, i, s.num_source(a)))
    return implies(o, waits, o.all(ours, s.source_state(t) == S_GRANTED, s.num_source(a) <= s.num_send(a)))


@conjunct(("source",))
def source_has_owner(o: Logic, s: State, t: Term) -> Term:
    """A source page that is held stands in its owner's table."""
    a, i = s.source_owner(t), s.source_index(t)
    holding = o.all(s.holds(a), i < s.num_send(a))
    waiting = o.all(s.prefill(a) == P_WAITING, i < s.num_source(a), s.source_state(t) == S_GRANTED)
    listed = o.all(s.source(a, i) == t, i >= 0, o.any(holding, waiting))
    held = implies(o, among(o, s.source_state(t), S_GRANTED, S_SEALED), listed)
    return o.all(held, s.source_state(t) >= S_FREE, s.source_state(t) <= S_QUARANTINED)


# ---- serials -----------------------------------------------------------------------------------------------------


@conjunct(("attempt", "attempt"))
def serials_differ(o: Logic, s: State, a: Term, b: Term) -> Term:
    """Two attempts never have one serial of one life."""
    same = o.all(s.serial(a) > 0, s.worker(a) == s.worker(b), s.serial(a) == s.serial(b))
    return implies(o, same, a == b)


@conjunct(("attempt",))
def serials_were_issued(o: Logic, s: State, a: Term) -> Term:
    """Serials only grow: each is below the next one of its life."""
    return s.serial(a) < s.next_serial(s.worker(a))


@conjunct(("source",))
def source_tags_were_issued(o: Logic, s: State, t: Term) -> Term:
    """So is each that stands in a source page."""
    return s.source_serial(t) < s.next_serial(s.pool(t))


AT_PREFILL = (
    no_stray_write,
    source_is_held,
    sealed_has_no_slack,
    batch_is_bounded,
    computing_holds_pages,
    sends_whole,
    sent_is_final,
    drained_is_quiet,
    owed_is_closed,
    may_write,
    worker_is_placed,
    over_is_quiet,
    work_is_counted,
    fresh_is_untouched,
    writes_are_counted,
    landed_is_landed,
    quiet_is_captured,
    writers_live,
    source_table_is_owned,
    source_is_reserved,
    source_has_owner,
    serials_differ,
    serials_were_issued,
    source_tags_were_issued,
)
