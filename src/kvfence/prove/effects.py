"""What commands do outside their node: pages written, writes posted, tokens let out, clients told."""

from typing import TypeVar

from kvfence.core.ids import AttemptId, Incarnation, RequestId
from kvfence.core.invariant import require
from kvfence.core.pages import PageState
from kvfence.protocol.commands import FIRST_TOKEN, Adopt, Command, Emit, Finish, Grew, Post, Resubmit, StartPrefill
from kvfence.protocol.events import Submit, TokensArrived
from kvfence.protocol.messages import Offer
from kvfence.protocol.properties import broken_in
from kvfence.prove.pages import NOTHING, PARTS, Cell, Tag, Write, content
from kvfence.prove.processes import Table, page_states
from kvfence.prove.steps import Outcome
from kvfence.prove.world import ABSENT, DECODE, GATEWAY, PREFILL, Around, Clients, Seen, Tables, World, name_of

T = TypeVar("T")

LONG_NS = 1


NOBODY = Clients((), (), ())
NOWHERE = Around((Incarnation(""), Incarnation(""), Incarnation("")))


def _put(table: Table[T], before: int, value: T, nothing: T) -> int:
    """Number a part; one that is absent stays so."""
    if before == ABSENT:
        require(value == nothing, "an action changes only the parts that it declares")
        return ABSENT
    return table.id_of(value)


class Draft:
    """A world in the making: what one action does to it, carried out in order."""

    def __init__(self, tables: Tables, world: World) -> None:
        self.tables = tables
        self.before = world
        self.processes = list(world[:3])
        self.network = tables.networks[world.network]
        self.writes = [] if world.writes == ABSENT else list(tables.writes[world.writes])
        self.prefill_cells = [] if world.prefill_cells == ABSENT else list(tables.cells[world.prefill_cells])
        self.decode_cells = [] if world.decode_cells == ABSENT else list(tables.cells[world.decode_cells])
        self.clients = NOBODY if world.clients == ABSENT else tables.clients[world.clients]
        self.around = NOWHERE if world.around == ABSENT else tables.around[world.around]
        self.wrong_reads: list[str] = []
        self.stray_writes: list[str] = []
        self.changed_sources: list[str] = []
        self.stale_slots: list[str] = []
        self.broken: tuple[str, ...] = ()
        self.outcomes: list[Outcome] = []

    def done(self) -> tuple[World, tuple[str, ...]]:
        """Give the world, and the properties that the action broke."""
        tables, before = self.tables, self.before
        world = World(
            self.processes[GATEWAY],
            self.processes[PREFILL],
            self.processes[DECODE],
            tables.networks.id_of(self.network),
            _put(tables.writes, before.writes, tuple(sorted(self.writes, key=repr)), ()),
            _put(tables.cells, before.prefill_cells, tuple(self.prefill_cells), ()),
            _put(tables.cells, before.decode_cells, tuple(self.decode_cells), ()),
            _put(tables.clients, before.clients, self.clients, NOBODY),
            _put(tables.around, before.around, self.around, NOWHERE),
        )
        seen = Seen(
            tuple(self.wrong_reads), tuple(self.stray_writes), tuple(self.changed_sources), tuple(self.stale_slots)
        )
        if any(seen) or world.clients != self.before.clients:
            self.broken += tuple(broken_in(tables.view(world, seen)))
        return world, self.broken

    def take(self, role: int, outcome: Outcome) -> None:
        """Carry out what a step led to."""
        self.outcomes.append(outcome)
        self.processes[role] = outcome.process
        self.broken += outcome.broken
        if outcome.sends:
            messages = tuple(sorted((*self.network.messages, *outcome.sends)))
            self.network = self.network._replace(messages=messages)
        for command in outcome.commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartPrefill(serial=serial, pages=pages):
                life = self.around.lives[PREFILL]
                self._heads(self.prefill_cells, [(life, serial, page) for page in pages])
            case Post():
                self._post(command)
            case Adopt():
                self._adopt(command)
            case Grew(serial=serial, pages=pages):
                life = self.around.lives[DECODE]
                self._heads(self.decode_cells, [(life, serial, page) for page in pages])
            case Emit(id=pass_id, attempts=attempts):
                for attempt in attempts:
                    self._emit(attempt, first=pass_id == FIRST_TOKEN)
            case Finish(request=request, reason=reason):
                ends = list(self.clients.ends)
                ends[int(request)] = (*ends[int(request)], reason)
                self.clients = self.clients._replace(ends=tuple(ends))
            case Resubmit(request=request, num_tokens=num_tokens, max_tokens=max_tokens, timer=timer, salt=salt):
                _, prefill, decode = self.around.lives
                event = Submit(request, num_tokens, max_tokens, prefill, decode, LONG_NS, salt, timer)
                self.submit(int(request), event)

    def submit(self, request: int, event: Submit) -> None:
        """Feed the gateway a request, or a preempted one again."""
        outcome = self.tables.steps.feed(self.processes[GATEWAY], event)
        offered = [m for m in outcome.sends if isinstance(self.tables.steps.messages[m].message, Offer)]
        if offered:
            self.clients = self.clients._replace(asked=(*self.clients.asked, request))
        self.take(GATEWAY, outcome)

    def request_of(self, counter: int) -> int:
        """Give the request behind an attempt."""
        return self.clients.asked[counter - 1]

    # ---- pages

    @staticmethod
    def _heads(cells: list[Cell], tags: list[Tag]) -> None:
        for tag in tags:
            cells[tag[2]] = cells[tag[2]]._replace(head=tag)

    def own(self, counter: int, position: int) -> int:
        """Give the bytes that are an attempt's own in a page."""
        return own_bytes(self.tables, self.request_of(counter), position)

    def _adopt(self, command: Adopt) -> None:
        life = self.around.lives[DECODE]
        self._heads(self.decode_cells, [(life, command.own_serial, page) for page in command.own])
        if self._num_tokens(command.attempt) % self.tables.bounds.capacity.page_size:
            source, own = self.decode_cells[command.pages[-1]], command.own[0]
            self.decode_cells[own] = self.decode_cells[own]._replace(held=source.held, slack=source.slack)

    def _num_tokens(self, attempt: AttemptId) -> int:
        node = self.tables.decode(self.before.decode).node
        return node.handoffs[attempt].num_tokens

    # ---- writes

    def _post(self, post: Post) -> None:
        node = self.tables.prefill(self.processes[PREFILL]).node
        handoff = node.handoffs[post.attempt]
        serial = handoff.grant.serial if handoff.grant is not None else 0
        counter = post.attempt.counter
        for source, page in zip(post.source, post.destination, strict=True):
            cell = self.prefill_cells[source]
            write = Write(counter, node.lives.incarnation, post.decode, post.session, page, serial, source, cell.head)
            self.writes.append(write)
            if cell.slack != NOTHING and cell.slack != self.own(counter, 0):
                self.stale_slots.append(f"source page {source}")

    def cell_of(self, write: Write) -> Cell:
        """Give a write's source as it is now."""
        return self.prefill_cells[write.source] if isinstance(write.source, int) else write.source

    def may_land(self, write: Write) -> bool:
        """Is its page granted for it?"""
        state = page_states(self.tables.decode(self.processes[DECODE]).node).get(write.page)
        return state == (PageState.GRANTED, write.serial) and write.target == self.around.lives[DECODE]

    def land(self, write: Write, part: int) -> None:
        """Land one part of a write and judge where it lands."""
        cell = self.cell_of(write)
        if cell.head != write.source_tag and cell.head is not None and cell.head[0] == write.writer:
            self.changed_sources.append(f"attempt {write.attempt}")
        state = page_states(self.tables.decode(self.processes[DECODE]).node).get(write.page)
        quarantined = state is not None and state[0] is PageState.QUARANTINED
        if not (write.misdirected or quarantined or self.may_land(write)):
            self.stray_writes.append(f"attempt {write.attempt} into page {write.page}")
        self.decode_cells[write.page] = self.decode_cells[write.page].landed(part, cell, write.corrupt)
        self.change(write, write._replace(parts=write.parts | 1 << part))

    def land_whole(self, write: Write) -> None:
        """Land every part in one step, where the receiver copies."""
        for part in range(PARTS):
            self.land(write._replace(parts=(1 << part) - 1) if part else write, part)

    def change(self, write: Write, after: Write) -> None:
        """Put another in a write's place; one that has ended and was given up is forgotten."""
        self.writes.remove(write)
        if after.live or not after.ended:
            self.writes.append(after)

    # ---- tokens

    def _emit(self, attempt: AttemptId, *, first: bool) -> None:
        counter = attempt.counter
        decode = self.tables.decode(self.before.decode)
        wrong: list[str] = []
        if first:
            wrong = ["prefill's own pages"] if counter in self.clients.tainted else []
            index = 0
        else:
            running = next(s for s in decode.running if s.attempt == attempt)
            wrong = [f"page {page}" for page, _, _ in running.wrong]
            index = decode.node.handoffs[attempt].num_emitted
        self.wrong_reads += [f"{name_of(self.request_of(counter))} from {each}" for each in wrong]
        token = TokensArrived(self.around.lives[DECODE], attempt, index, 1)
        self.network = self.network._replace(tokens=(*self.network.tokens, token))


def own_bytes(tables: Tables, request: int, position: int) -> int:
    """Give the bytes that are a request's own in a page; prompts of one family and tenant share their first."""
    asked = tables.bounds.requests[request]
    if asked.family and position == 0:
        return content(4 + 4 * asked.family + asked.tenant, position)
    return content(request, position)


def request_id(request: int) -> RequestId:
    """Name a request for the nodes."""
    return RequestId(str(request))
