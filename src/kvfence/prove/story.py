"""A counterexample as a person reads it: numbered sentences, who decided what, and the pages drawn after each step."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from kvfence.core.pages import PageState
from kvfence.protocol import properties
from kvfence.protocol.messages import Envelope
from kvfence.prove.pages import BYTES, HEAD, TAIL, Cell, Tag, Write, owner
from kvfence.prove.processes import page_states
from kvfence.prove.search import Search, Way
from kvfence.prove.steps import REFUSED, Outcome
from kvfence.prove.successors import logged, start_of
from kvfence.prove.world import DECODE, PREFILL, ROLES, Tables, World, name_of

PART_NAMES = {HEAD: "head", BYTES: "bytes", TAIL: "tail"}

STATEMENTS = {
    **{p.name: p.statement for p in properties.OF_NODES},
    **{p.name: p.statement for p in properties.OF_STEPS},
    **{p.name: p.statement for p in properties.OF_WORLDS},
    REFUSED: "No node and no page table is asked for the impossible.",
}


class PageShown(Struct, frozen=True):
    """One page after a step. ``state`` and ``serial``: what its node says of it."""

    pool: str
    page: int
    state: str
    serial: int
    head: str
    bytes: str
    tail: str
    changed: bool = False

    @property
    def line(self) -> str:
        """Draw the page on one line."""
        held = f"{self.state} #{self.serial}" if self.state != "free" else "free"
        mark = "*" if self.changed else " "
        return f"{mark} {self.pool:>7} {self.page}  {held:<15} | {self.head:^13} | {self.bytes:^10} | {self.tail:^13} |"


class Moment(Struct, frozen=True):
    """One step of a story. ``guards``: those that did not hold, and whether that was obeyed."""

    number: int
    kind: str
    text: str
    guards: tuple[str, ...]
    broken: tuple[str, ...]
    pages: tuple[PageShown, ...]


class Story(Struct, frozen=True):
    """How a property comes to be broken."""

    property: str
    statement: str
    at_rest: bool
    moments: tuple[Moment, ...]


def tell(search: Search, way: Way) -> Story:
    """Follow a way once more, in the names that pages and serials had as it happened."""
    model, tables = search.model, search.model.tables
    world = search.settle(start_of(model))
    shown = draw(tables, world, ())
    moments: list[Moment] = []
    for number, edge in enumerate(way.edges, 1):
        wanted = search.named(edge.world)
        kind = edge.kind
        for found, outcomes in logged(model, world):
            if found.kind == kind and found.broken == edge.broken and search.named(found.world) == wanted:
                before, world = world, search.settle(found.world)
                shown = draw(tables, world, shown)
                text = sentence(tables, before, found.kind, found.about, outcomes)
                moments.append(Moment(number, kind, text, _guards(outcomes), found.broken, shown))
                break
        tables.steps.logging = False
    return Story(way.name, STATEMENTS.get(way.name, way.name), way.at_rest, tuple(moments))


# ---- pages --------------------------------------------------------------------------------------------------------


def draw(tables: Tables, world: World, before: Iterable[PageShown]) -> tuple[PageShown, ...]:
    """Draw every page of both pools."""
    old = {(shown.pool, shown.page): shown for shown in before}
    pages: list[PageShown] = []
    for role, number in ((PREFILL, world.prefill_cells), (DECODE, world.decode_cells)):
        cells = tables.cells[number]
        states = page_states(tables.steps.processes[world[role]].node)
        for page, cell in enumerate(cells):
            state, serial = states.get(page, (PageState.FREE, 0))
            shown = _shown(tables, ROLES[role], page, cell)
            shown = PageShown(shown.pool, page, state.value, serial, shown.head, shown.bytes, shown.tail)
            last = old.get((shown.pool, page))
            changed = last is not None and shown != _unmarked(last)
            pages.append(_marked(shown) if changed else shown)
    return tuple(pages)


def _marked(shown: PageShown) -> PageShown:
    return PageShown(shown.pool, shown.page, shown.state, shown.serial, shown.head, shown.bytes, shown.tail, True)


def _unmarked(shown: PageShown) -> PageShown:
    return PageShown(shown.pool, shown.page, shown.state, shown.serial, shown.head, shown.bytes, shown.tail)


def _shown(tables: Tables, pool: str, page: int, cell: Cell) -> PageShown:
    tail = "-" if cell.tail is None else _tag(cell.tail[0])
    return PageShown(pool, page, "", 0, _tag(cell.head), held_by(tables, cell.held), tail)


def _tag(tag: Tag | None) -> str:
    return "-" if tag is None else f"{tag[0]}#{tag[1]}"


def held_by(tables: Tables, held: int) -> str:
    """Say whose bytes these are."""
    who = owner(held)
    if who is None:
        return "nothing" if held < 0 else "nobody's"
    request, position = who
    if request >= len(tables.bounds.requests):
        return f"common {position + 1}"
    return f"{name_of(request)} page {position + 1}"


# ---- sentences ----------------------------------------------------------------------------------------------------


def sentence(tables: Tables, before: World, kind: str, about: Any, outcomes: tuple[Outcome, ...]) -> str:
    """Say in one sentence what happened, and what nodes said because of it."""
    teller = _TELLERS[kind]
    said = [tables.steps.messages[message] for outcome in outcomes for message in outcome.sends]
    answer = ". ".join(_said(envelope) for envelope in said)
    text = teller(tables, before, about)
    return f"{text}. {answer}." if answer else f"{text}."


def _said(envelope: Envelope) -> str:
    return f"{_role(envelope.sender).capitalize()} says {_message(envelope)} to {_role(envelope.receiver)}"


def _role(life: str) -> str:
    return life.removesuffix("-1")


def _message(envelope: Envelope) -> str:
    message = envelope.message
    attempt = getattr(message, "attempt", None)
    reason = getattr(message, "reason", None)
    name = type(message).__name__
    grant = getattr(message, "grant", message)
    pages = getattr(grant, "pages", ())
    words = [name, f"of attempt {attempt.counter}" if attempt is not None else ""]
    plural = "s" if len(pages) > 1 else ""
    words += [f"(page{plural} {', '.join(map(str, pages))})" if pages else "", f"({reason.value})" if reason else ""]
    return " ".join(word for word in words if word)


def _guards(outcomes: tuple[Outcome, ...]) -> tuple[str, ...]:
    decisions = (decision for outcome in outcomes for decision in outcome.decisions)
    return tuple(
        f"{d.guard} at {d.place} does not hold: {'obeyed' if d.enforced else 'not obeyed, the guard is away'}"
        for d in decisions
        if not d.holds
    )


def _request(tables: Tables, about: int) -> str:
    asked = tables.bounds.requests[about]
    return f"{name_of(about)} asks: a prompt of {asked.num_tokens} tokens, {asked.max_tokens} back"


def _land(_tables: Tables, _world: World, about: tuple[Write, int]) -> str:
    write, part = about
    what = PART_NAMES.get(part, "whole page")
    source = write.source if isinstance(write.source, int) else "of a dead writer"
    lands = ("land" if part == BYTES else "lands") + ("" if write.live else " late")
    return f"The {what} of a write for attempt {write.attempt} {lands} in decode's page {write.page} (from {source})"


Teller = Callable[[Tables, World, Any], str]

_TELLERS: dict[str, Teller] = {
    "submit": lambda t, _w, a: _request(t, a),
    "deliver": lambda t, _w, a: f"{_message(t.steps.messages[a])} reaches {_role(t.steps.messages[a].receiver)}",
    "token": lambda _t, _w, a: f"Token {a.first_index + 1} of attempt {a.attempt.counter} reaches its client",
    "floor": lambda _t, _w, a: f"{ROLES[a[0]].capitalize()} hears that attempts below {a[1]} are over",
    "prefill-begin": lambda _t, _w, a: f"Prefill begins to compute {_attempts(a)}",
    "prefill-end": lambda _t, _w, a: f"Prefill has computed and sealed {_attempts(x for x, _ in a.finished)}",
    "land": _land,
    "write-refused": lambda _t, _w, a: f"A write for attempt {a.attempt} is refused where it would land",
    "batch-end": lambda _t, _w, a: f"The batch of attempt {a} has ended",
    "verify": lambda _t, _w, a: (
        f"Decode compares what landed for attempt {a.attempt.counter} with the manifest: "
        f"{'stamps of pages ' + ', '.join(map(str, a.bad_stamps)) + ' differ' if a.bad_stamps else 'stamps match'}, "
        f"{'bytes match' if a.digests_match else 'bytes do not match'}"
    ),
    "decode-begin": lambda _t, _w, a: f"Decode compares heads and begins a pass over {_attempts(a)}",
    "decode-read": lambda t, w, _a: _reads(t, w),
    "decode-end": lambda _t, _w, a: (
        "Decode compares heads again: "
        f"{'page ' + ', '.join(str(p) for _, pages in a.bad for p in pages) + ' differs' if a.bad else 'all match'}"
    ),
    "fence-start": lambda _t, _w, _a: "The supervisor proves that no former life writes any more",
    "notice": lambda _t, _w, a: f"{ROLES[a[0]].capitalize()} hears of {type(a[1]).__name__}({a[1].peer})",
    "reap": lambda _t, _w, a: f"{a} has been reaped: it writes no more",
    "resend": lambda _t, _w, a: f"{ROLES[a[0]].capitalize()} says again what is unanswered of attempt {a[1]}",
    "repair": lambda _t, _w, _a: "Nothing else can happen: the supervisor fences what hangs",
    "prefill-rebuilt": lambda _t, _w, _a: "Prefill's own engine is rebuilt",
    "deadline": lambda _t, _w, a: f"The time of attempt {a[1]} is over at {ROLES[a[0]]}",
    "fault:loss": lambda t, _w, a: f"FAULT: {_message(t.steps.messages[a])} is lost",
    "fault:duplicate": lambda t, _w, a: f"FAULT: {_any_message(t, a)} arrives, and a copy is still on its way",
    "fault:confuse": lambda t, _w, a: f"FAULT: a completion is taken for {_message(t.steps.messages[a])}",
    "fault:corrupt": lambda _t, _w, a: f"FAULT: a write for attempt {a.attempt} will land other bytes",
    "fault:misdirect": lambda _t, _w, a: f"FAULT: a write for attempt {a[0].attempt} goes to page {a[1]}",
    "fault:hasty": lambda _t, _w, a: f"FAULT: the batch of attempt {a} is called done before all of it has landed",
    "fault:misdirect-early": lambda _t, _w, a: f"FAULT: a write for attempt {a[0].attempt} goes to page {a[1]} early",
    "fault:stall": lambda _t, _w, a: f"FAULT: the batch of attempt {a} is given up; its writes may still land",
    "fault:cancel": lambda _t, _w, a: f"FAULT: the client of {name_of(a)} leaves",
    "fault:deadline": lambda _t, _w, a: f"FAULT: the time of attempt {a[1]} is over at {ROLES[a[0]]}",
    "fault:retry": lambda t, _w, a: f"FAULT: after its failure {_request(t, a)} again",
    "fault:silence": lambda _t, _w, a: f"FAULT: {ROLES[a]} is taken for silent",
    "fault:restart-prefill": lambda _t, _w, _a: "FAULT: prefill dies and a successor is born; its writes go on",
    "fault:restart-decode": lambda _t, _w, _a: "FAULT: decode dies; its successor finds the pages as they are",
}


def _attempts(attempts: Iterable[Any]) -> str:
    counters = [str(attempt.counter) for attempt in attempts]
    return f"attempt{'s' if len(counters) > 1 else ''} {', '.join(counters)}" if counters else "nothing"


def _any_message(tables: Tables, about: Any) -> str:
    return _message(tables.steps.messages[about]) if isinstance(about, int) else "a token"


def _reads(tables: Tables, world: World) -> str:
    cells = tables.cells[world.decode_cells]
    parts = []
    for sequence in tables.decode(world.decode).running:
        read = ", ".join(f"page {row.page} ({held_by(tables, cells[row.page].held)})" for row in sequence.rows)
        parts.append(f"attempt {sequence.attempt.counter} reads {read}")
    return "The pass reads its pages: " + "; ".join(parts)
