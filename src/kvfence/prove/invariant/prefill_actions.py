"""What happens at prefill, as ``protocol/prefill*.py`` does it without prefix reuse."""

from kvfence.prove.invariant.action import Effect, Guards, action
from kvfence.prove.invariant.fields import (
    ENDED,
    LANDED,
    LOST,
    P_ABORTING,
    P_CLOSED,
    P_FAILED,
    P_NONE,
    P_RUNNING,
    P_SENT,
    P_WAITING,
    POSTED,
    S_FREE,
    S_GRANTED,
    S_QUARANTINED,
    S_SEALED,
    SESSION,
    lives,
    within,
)
from kvfence.prove.invariant.logic import Field, Logic, State, Term, among, at, implies

# ---- dispatch ----------------------------------------------------------------------------------------------------


@action("attempt", "life", "int")
def dispatch(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """A Dispatch is queued by the worker that it reaches, for as many pages as it is taken to have."""
    a, life, number = about
    placed = (life == s.placed(a)) if g.on("peer-is-current", "prefill") else True
    current = o.no(s.forgotten(a)) if g.on("attempt-is-current", "prefill") else True
    layout = s.layout(life) if g.on("layout-agrees", "prefill") else True
    whole = (number == s.size(a)) if g.on("refusal-is-final", "prefill") else o.all(number >= 1, number <= s.size(a))
    asked = o.all(s.granted(a), s.prefill(a) == P_NONE, o.no(s.dead(life)))
    queued = s.but(prefill=at(o, s.prefill, a, P_WAITING), worker=at(o, s.worker, a, life))
    counted = queued.but(num_send=at(o, s.num_send, a, number), num_source=at(o, s.num_source, a, 0))
    return Effect(o.all(asked, placed, current, layout, whole), counted)


@action("attempt", "source")
def reserve(o: Logic, s: State, g: Guards, a: Term, t: Term) -> Effect:
    """A free source page becomes the next one of a waiting prompt."""
    i = s.num_source(a)
    free = o.all(s.source_state(t) == S_FREE, s.pool(t) == s.worker(a))
    may = o.all(s.prefill(a) == P_WAITING, i < s.num_send(a), i >= 0, free)
    owned = s.but(source_owner=at(o, s.source_owner, t, a), source_index=at(o, s.source_index, t, i))
    listed = owned.but(source=at(o, s.source, a, i, t), num_source=at(o, s.num_source, a, i + 1))
    return Effect(may, listed.but(source_state=at(o, s.source_state, t, S_GRANTED)))


@action("attempt")
def start(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """The whole prompt has pages: they get a new serial, and their heads show it."""
    life = s.worker(a)
    serial = s.next_serial(life)
    may = o.all(s.prefill(a) == P_WAITING, s.num_source(a) == s.num_send(a), s.num_send(a) >= 1)
    mine: Field = lambda t: o.all(s.source_owner(t) == a, s.source_state(t) == S_GRANTED)
    numbered = s.but(serial=at(o, s.serial, a, serial), next_serial=at(o, s.next_serial, life, serial + 1))
    headed = numbered.but(source_serial=lambda t: o.where(mine(t), serial, s.source_serial(t)))
    return Effect(may, headed.but(prefill=at(o, s.prefill, a, P_RUNNING), holds=at(o, s.holds, a, True)))


# ---- chunks ------------------------------------------------------------------------------------------------------


@action("attempt")
def begin_chunk(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A chunk pass begins."""
    may = o.all(s.prefill(a) == P_RUNNING, o.no(s.computing(a)))
    return Effect(may, s.but(computing=at(o, s.computing, a, True)))


@action("attempt", "index", "bool")
def fill(o: Logic, s: State, g: Guards, *about: Term) -> Effect:
    """A pass writes a page that is not sealed yet; what was there before may stay behind its last token."""
    a, i, slack = about
    t = s.source(a, i)
    may = o.all(s.computing(a), i >= s.num_sealed(a), i < s.num_send(a))
    filled = s.but(source_of=at(o, s.source_of, t, s.request(a)), source_at=at(o, s.source_at, t, i))
    return Effect(may, filled.but(slack=at(o, s.slack, t, slack)))


@action("attempt", "bool")
def end_chunk(o: Logic, s: State, g: Guards, a: Term, finished: Term) -> Effect:
    """A chunk pass ends."""
    computed = at(o, s.computed, a, finished)
    return Effect(s.computing(a), s.but(computing=at(o, s.computing, a, False), computed=computed))


@action("attempt", "source")
def clear_slack(o: Logic, s: State, g: Guards, a: Term, t: Term) -> Effect:
    """The slots behind the last token are zeroed before a page is sealed."""
    may = o.all(s.holds(a), s.source_owner(t) == a)
    return Effect(may, s.but(slack=at(o, s.slack, t, False)))


@action("attempt", "int")
def seal(o: Logic, s: State, g: Guards, a: Term, number: Term) -> Effect:
    """Computed pages get their final stamps, in order."""

    def computed(t: Term) -> Term:
        mine = o.all(s.source_owner(t) == a, among(o, s.source_state(t), S_GRANTED, S_SEALED))
        new = o.all(mine, s.source_index(t) >= s.num_sealed(a), s.source_index(t) < number)
        zeroed = o.no(s.slack(t)) if g.on("zero-tail", "prefill") else True
        return implies(o, new, o.all(s.source_of(t) == s.request(a), s.source_at(t) == s.source_index(t), zeroed))

    order = o.all(s.num_sealed(a) < number, number <= s.num_send(a))
    may = o.all(s.prefill(a) == P_RUNNING, s.holds(a), order, o.each(("source",), computed))
    sealed: Field = lambda t: o.where(
        o.all(s.source_owner(t) == a, s.source_state(t) == S_GRANTED, s.source_index(t) < number),
        S_SEALED,
        s.source_state(t),
    )
    return Effect(may, s.but(num_sealed=at(o, s.num_sealed, a, number), source_state=sealed))


# ---- batches -----------------------------------------------------------------------------------------------------


@action("attempt", "int")
def post(o: Logic, s: State, g: Guards, a: Term, number: Term) -> Effect:
    """Sealed pages are posted, none twice; what goes to a session or a life of the past cannot land."""
    bounded = o.all(o.no(s.batch(a)), number - s.num_posted(a) <= s.batch_max())
    order = o.all(s.num_posted(a) < number, number <= s.num_sealed(a))
    alive = o.all(s.prefill(a) == P_RUNNING, o.no(s.unknown(a)), o.no(s.dead(s.worker(a))))
    may = o.all(alive, order, bounded if g.on("batch-bound", "prefill") else True)
    former = o.all(s.decode(a) == LOST, s.started())
    past = o.any(o.all(s.fence() == SESSION, s.session_of(a) < s.session()), former)

    def write(b: Term, i: Term) -> Term:
        new = o.all(b == a, i >= s.num_posted(a), i < number)
        return o.where(new, o.where(past, ENDED, POSTED), s.write(b, i))

    return Effect(may, s.but(write=write, num_posted=at(o, s.num_posted, a, number), batch=at(o, s.batch, a, True)))


@action("attempt")
def end_batch(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A batch landed."""

    def landed(i: Term) -> Term:
        return implies(o, o.all(i >= s.num_landed(a), i < s.num_posted(a)), s.write(a, i) == LANDED)

    may = o.all(s.batch(a), o.no(s.unknown(a)), o.each(("index",), landed))
    counted = s.but(num_landed=at(o, s.num_landed, a, s.num_posted(a)))
    return Effect(may, counted.but(batch=at(o, s.batch, a, False)))


@action("attempt", "bool")
def fail_batch(o: Logic, s: State, g: Guards, a: Term, quiet: Term) -> Effect:
    """A batch ends in non-success: its writes may land later, and read their source later unless that is quiet."""
    reads: Field = lambda b, i: o.any(s.captured(b, i), o.all(b == a, quiet, i >= s.num_landed(a)))
    still = o.all(s.quiet(a), quiet)
    after = s.but(batch=at(o, s.batch, a, False), unknown=at(o, s.unknown, a, True), captured=reads)
    return Effect(s.batch(a), after.but(quiet=at(o, s.quiet, a, still)))


@action("attempt")
def send(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Everything is computed and landed: Sent."""
    done = o.all(s.computed(a), o.no(s.computing(a)), s.num_landed(a) == s.num_send(a), o.no(s.unknown(a)))
    may = o.all(s.prefill(a) == P_RUNNING, done, o.no(s.batch(a)))
    return Effect(may, s.but(prefill=at(o, s.prefill, a, P_SENT), sent=at(o, s.sent, a, True)))


@action("attempt")
def send_again(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Sent is said again until it is answered."""
    return Effect(s.prefill(a) == P_SENT, s.but(sent=at(o, s.sent, a, True)))


# ---- ends --------------------------------------------------------------------------------------------------------


@action("attempt")
def fail(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Prefill gives up: Failed."""
    waits = o.all(s.prefill(a) == P_WAITING, s.num_source(a) == 0)
    return Effect(o.any(waits, s.prefill(a) == P_RUNNING), s.but(prefill=at(o, s.prefill, a, P_FAILED)))


@action("attempt")
def refuse(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A Dispatch is refused for good: Failed."""
    asked = o.all(s.granted(a), s.prefill(a) == P_NONE)
    return Effect(asked, s.but(prefill=at(o, s.prefill, a, P_FAILED)))


@action("attempt")
def abort_unknown(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """An Abort comes before its Dispatch, or long after: Drained, and it is remembered while a Dispatch may come."""
    kept = P_CLOSED if g.on("tombstone", "prefill") else P_NONE
    phase = o.where(s.forgotten(a), P_NONE, kept)
    after = s.but(prefill=at(o, s.prefill, a, phase), drained=at(o, s.drained, a, True))
    return Effect(o.all(s.prefill(a) == P_NONE, o.no(s.unknown(a))), after)


@action("attempt", "bool")
def stop(o: Logic, s: State, g: Guards, a: Term, owes: Term) -> Effect:
    """An Abort, or decode's death, stops an attempt."""
    works = among(o, s.prefill(a), P_RUNNING, P_SENT, P_FAILED)
    may = o.any(works, o.all(s.prefill(a) == P_WAITING, s.num_source(a) == 0))
    busy = o.any(s.batch(a), s.computing(a))
    phase = o.where(busy, P_ABORTING, P_CLOSED)
    return Effect(may, s.but(prefill=at(o, s.prefill, a, phase), owes=at(o, s.owes, a, owes)))


@action("attempt", "bool")
def stop_again(o: Logic, s: State, g: Guards, a: Term, owes: Term) -> Effect:
    """An Abort is repeated, or decode dies, while the first is being answered."""
    return Effect(s.prefill(a) == P_ABORTING, s.but(owes=at(o, s.owes, a, owes)))


@action("attempt")
def let_go(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """The source is free, or in quarantine where a failed batch may still read it."""
    ended = o.no(s.computing(a)) if g.on("pass-ended", "prefill") else True
    read = o.no(s.batch(a)) if g.on("hold-source", "prefill") else True
    may = o.all(s.holds(a), among(o, s.prefill(a), P_FAILED, P_ABORTING, P_CLOSED), ended, read)
    left = o.where(s.quiet(a), S_FREE, S_QUARANTINED)
    mine: Field = lambda t: o.all(s.source_owner(t) == a, among(o, s.source_state(t), S_GRANTED, S_SEALED))
    after = s.but(source_state=lambda t: o.where(mine(t), left, s.source_state(t)))
    return Effect(may, after.but(holds=at(o, s.holds, a, False)))


@action("attempt")
def close(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """What was stopped is over once its passes and batches are."""
    may = o.all(s.prefill(a) == P_ABORTING, o.no(s.batch(a)), o.no(s.computing(a)))
    return Effect(may, s.but(prefill=at(o, s.prefill, a, P_CLOSED)))


@action("attempt")
def say_drained(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Decode hears Drained, unless a batch ended in non-success."""
    over = o.all(o.no(s.batch(a)), o.no(s.computing(a)), s.prefill(a) == P_CLOSED)
    quiet = over if g.on("drain-or-fence", "prefill") else True
    may = o.all(s.owes(a), o.no(s.unknown(a)), quiet)
    return Effect(may, s.but(drained=at(o, s.drained, a, True), owes=at(o, s.owes, a, False)))


@action("attempt")
def say_unknown(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Decode hears Unknown."""
    return Effect(o.all(s.owes(a), s.unknown(a)), s.but(owes=at(o, s.owes, a, False)))


@action("attempt")
def say_again(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """A repeated Abort of what is over is answered as the first."""
    may = o.all(s.prefill(a) == P_CLOSED, o.no(s.unknown(a)))
    return Effect(may, s.but(drained=at(o, s.drained, a, True)))


@action("attempt")
def commit(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Decode took the pages."""
    return Effect(s.prefill(a) == P_SENT, s.but(prefill=at(o, s.prefill, a, P_CLOSED)))


@action("attempt")
def raise_prefill_floor(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """Prefill hears that an attempt is over for ever."""
    return Effect(True, s.but(forgotten=at(o, s.forgotten, a, True)))


@action("attempt")
def forget_prefill(o: Logic, s: State, g: Guards, a: Term) -> Effect:
    """What is over and owes nothing is forgotten, but not that nobody knows when its last write ends."""
    idle = o.all(o.no(s.holds(a)), o.no(s.owes(a)), s.forgotten(a))
    may = o.all(s.prefill(a) == P_CLOSED, idle, o.any(o.no(s.unknown(a)), s.decode(a) == LOST))
    return Effect(may, s.but(prefill=at(o, s.prefill, a, P_NONE)))


@action("life")
def rebuild_engine(o: Logic, s: State, g: Guards, life: Term) -> Effect:
    """A prefill worker's own engine is a new one: nothing of the old one reads a source any more."""
    ours: Field = lambda t: o.all(s.pool(t) == life, s.source_state(t) == S_QUARANTINED)
    read: Field = lambda a, i: o.any(s.captured(a, i), o.all(s.worker(a) == life, lives(o, s, a, i)))
    state: Field = lambda t: o.where(ours(t), S_FREE, s.source_state(t))
    return Effect(True, s.but(source_state=state, captured=read))


PREFILL_ACTIONS = (
    dispatch,
    reserve,
    start,
    begin_chunk,
    fill,
    end_chunk,
    clear_slack,
    seal,
    post,
    end_batch,
    fail_batch,
    send,
    send_again,
    fail,
    refuse,
    abort_unknown,
    stop,
    stop_again,
    let_go,
    close,
    say_drained,
    say_unknown,
    say_again,
    commit,
    raise_prefill_floor,
    forget_prefill,
    rebuild_engine,
)

__all__ = ["PREFILL_ACTIONS", "within"]
