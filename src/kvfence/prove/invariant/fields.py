"""The abstract state: one decode pool, any number of prefill lives, attempts and pages, and what has been posted.

What is left out, and why that is no loss, stands in ``docs/assurance.md``. Prompts are counted in pages.
"""

from typing import Final

from kvfence.prove.invariant.logic import Kind, Logic, Sort, State, Term

# What an attempt is at decode. LOST: of a former life of the decode worker.
NONE, WAITING, GRANTED, VERIFYING, RUNNING, REVOKED, CLOSED, LOST = range(8)
# What it is at prefill.
P_NONE, P_WAITING, P_RUNNING, P_SENT, P_FAILED, P_ABORTING, P_CLOSED = range(7)
# What a page of decode's pool is: REMOTE is granted for prefill to write, OWN for decode.
FREE, REMOTE, ADOPTED, OWN, QUARANTINED = range(5)
# What a source page is.
S_FREE, S_GRANTED, S_SEALED, S_QUARANTINED = range(4)
# How far a posted write is: head, first half, second half, tail. ENDED: no part of it lands any more.
UNPOSTED, POSTED, HEAD, FIRST, SECOND, LANDED, ENDED = range(7)
# What ends a write that nobody waits for (``transitions.Fence``).
RECEIPT, EXIT, SESSION = range(3)
# Whose tag a page's head is: nobody's, prefill's (life, serial, source page), or decode's own (attempt).
BARE, ORIGIN, BY_DECODE = range(3)

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "decode": ("none", "waiting", "granted", "verifying", "running", "revoked", "closed", "lost"),
    "prefill": ("none", "waiting", "running", "sent", "failed", "aborting", "closed"),
    "page": ("free", "remote", "adopted", "own", "quarantined"),
    "source_state": ("free", "granted", "sealed", "quarantined"),
    "write": ("unposted", "posted", "head", "first", "second", "landed", "ended"),
    "fence": ("at receipt", "exit", "session"),
}
"""What those numbers are called, by field."""

FIXED: Final[dict[str, tuple[tuple[Sort, ...], Kind]]] = {
    "size": (("attempt",), "int"),  # pages of the prompt, as the gateway offered it
    "placed": (("attempt",), "life"),  # the prefill worker that the gateway named
    "request": (("attempt",), "request"),
    "partial": (("attempt",), "bool"),  # the last page is not full: decode copies it
    "layout": (("life",), "bool"),  # this prefill life has decode's layout
    "pool": (("source",), "life"),
    "fence": ((), "int"),
    "batch_max": ((), "int"),
    "nobody": ((), "request"),
}
"""What never changes."""

_DECODE: dict[str, tuple[tuple[Sort, ...], Kind]] = {
    "decode": (("attempt",), "int"),
    "num_table": (("attempt",), "int"),  # remote pages in its page table
    "table": (("attempt", "index"), "page"),
    "manifest": (("attempt",), "attempt"),  # whose Sent it holds
    "passing": (("attempt",), "bool"),  # a forward pass reads and writes its pages
    "over": (("attempt",), "bool"),  # below the floor that decode knows
    "granted": (("attempt",), "bool"),  # pages were granted once, so that a Dispatch may exist
    "session_of": (("attempt",), "int"),
    "session": ((), "int"),
    "started": ((), "bool"),  # the writers of a former life are fenced
}

_PAGES: dict[str, tuple[tuple[Sort, ...], Kind]] = {
    "page": (("page",), "int"),
    "owner": (("page",), "attempt"),
    "index": (("page",), "index"),
    "used": (("page",), "bool"),  # an own page that holds tokens
    "suspect": (("page", "life"), "bool"),  # in quarantine until this life is fenced
    "drains": (("page",), "bool"),  # in quarantine until *drained*
    "former": (("page",), "bool"),  # in quarantine since the start
    "noticed": (("page",), "bool"),  # a comparison found another's stamp in it
    "stray": (("page",), "int"),  # parts of a misdirected write that have landed, 0: none is landing
    "stray_by": (("page",), "life"),
    "head_kind": (("page",), "int"),
    "head_life": (("page",), "life"),
    "head_serial": (("page",), "int"),
    "head_page": (("page",), "source"),
    "head_own": (("page",), "attempt"),
    "first_of": (("page",), "request"),
    "first_at": (("page",), "int"),
    "second_of": (("page",), "request"),
    "second_at": (("page",), "int"),
    "tail_life": (("page",), "life"),
    "tail_serial": (("page",), "int"),
    "tail_page": (("page",), "source"),
    "digest_of": (("page",), "request"),  # the bytes that the tail's digest is of
    "digest_at": (("page",), "int"),
    "foul": (("page",), "bool"),  # the pass under way read bytes in it that are not its sequence's
}

_PREFILL: dict[str, tuple[tuple[Sort, ...], Kind]] = {
    "prefill": (("attempt",), "int"),
    "worker": (("attempt",), "life"),
    "serial": (("attempt",), "int"),  # of its source pages; 0: none yet
    "source": (("attempt", "index"), "source"),
    "num_source": (("attempt",), "int"),
    "num_send": (("attempt",), "int"),
    "num_sealed": (("attempt",), "int"),
    "num_posted": (("attempt",), "int"),
    "num_landed": (("attempt",), "int"),
    "holds": (("attempt",), "bool"),
    "computing": (("attempt",), "bool"),
    "computed": (("attempt",), "bool"),
    "batch": (("attempt",), "bool"),
    "unknown": (("attempt",), "bool"),
    "quiet": (("attempt",), "bool"),
    "owes": (("attempt",), "bool"),  # decode waits for Drained or Unknown
    "forgotten": (("attempt",), "bool"),  # below the floor that prefill knows
    "source_state": (("source",), "int"),
    "source_owner": (("source",), "attempt"),
    "source_index": (("source",), "index"),
    "source_serial": (("source",), "int"),
    "source_of": (("source",), "request"),
    "source_at": (("source",), "int"),
    "slack": (("source",), "bool"),  # another's bytes behind its last token
}

_BETWEEN: dict[str, tuple[tuple[Sort, ...], Kind]] = {
    "dead": (("life",), "bool"),  # its process has ended
    "writer": (("life",), "bool"),  # decode knows that it may write
    "next_serial": (("life",), "int"),
    "write": (("attempt", "index"), "int"),
    "captured": (("attempt", "index"), "bool"),  # its bytes have left the source
    "corrupted": (("attempt", "index"), "bool"),
    "sent": (("attempt",), "bool"),  # a Sent is on its way
    "drained": (("attempt",), "bool"),
    "leaked": ((), "bool"),  # a token left that was computed from foreign bytes
}

CHANGING: Final[dict[str, tuple[tuple[Sort, ...], Kind]]] = {**_DECODE, **_PAGES, **_PREFILL, **_BETWEEN}
"""What actions change."""


def lives(o: Logic, s: State, a: Term, i: Term) -> Term:
    """A write of this attempt's page may still land."""
    return o.all(s.write(a, i) >= POSTED, s.write(a, i) <= SECOND)


def within(o: Logic, i: Term, bound: Term) -> Term:
    """A position below a bound."""
    return o.all(i >= 0, i < bound)


def posts_no_more(o: Logic, s: State, a: Term) -> Term:
    """Prefill will never post for this attempt again."""
    forgotten = o.all(s.prefill(a) == P_NONE, s.forgotten(a))
    return o.any(s.prefill(a) >= P_SENT, forgotten, s.dead(s.worker(a)))


def origin_head(o: Logic, s: State, p: Term, a: Term, i: Term) -> Term:
    """The head of a page is the tag under which this attempt's page was written at prefill."""
    same = o.all(s.head_life(p) == s.worker(a), s.head_serial(p) == s.serial(a), s.head_page(p) == s.source(a, i))
    return o.all(s.head_kind(p) == ORIGIN, same)


def origin_tail(o: Logic, s: State, p: Term, a: Term, i: Term) -> Term:
    """So is its tail."""
    return o.all(s.tail_life(p) == s.worker(a), s.tail_serial(p) == s.serial(a), s.tail_page(p) == s.source(a, i))


def own_head(o: Logic, s: State, p: Term, a: Term) -> Term:
    """The head of a page is decode's own for this attempt."""
    return o.all(s.head_kind(p) == BY_DECODE, s.head_own(p) == a)


def own_bytes(o: Logic, s: State, p: Term, a: Term, i: Term) -> Term:
    """Both halves of a page hold page ``i`` of this attempt's request."""
    first = o.all(s.first_of(p) == s.request(a), s.first_at(p) == i)
    return o.all(first, s.second_of(p) == s.request(a), s.second_at(p) == i)


def own_digest(o: Logic, s: State, p: Term, a: Term, i: Term) -> Term:
    """The digest in its tail is of these very bytes."""
    return o.all(own_bytes(o, s, p, a, i), s.digest_of(p) == s.request(a), s.digest_at(p) == i)
