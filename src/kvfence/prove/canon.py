"""Which worlds are one: those that differ in names alone get the same names.

Pages, serials and tags are compared for equality and order only, so that a world and its renaming behave alike. Pages
of each pool are named in the order in which its node lists them, serials in their own order from 1, and a tag that
stands in memory alone, which nobody holds, promises or sends any more, becomes one that matches nothing.

Checked against the graph without it: ``tests/prove``.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from kvfence.core.ids import Incarnation
from kvfence.core.manifest import Manifest
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.handoff import DecodeHandoff, GatewayHandoff, PrefillHandoff
from kvfence.protocol.lots import Lot, Pool
from kvfence.protocol.messages import Dispatch, Envelope, Grant, Sent
from kvfence.protocol.prefill import PrefillNode
from kvfence.prove.pages import Cell, Tag, Write
from kvfence.prove.processes import Chunk, Decode, Gateway, Prefill, Process, Row, Sequence
from kvfence.prove.world import DECODE, PREFILL, Network, Tables, World

GONE = -1
"""The serial of a tag that nobody names any more."""

Named = tuple[frozenset[int], frozenset[int], frozenset[tuple[Incarnation, int]]]
"""Serials that somebody names: prefill's, decode's, and those of lives that are over."""


class Names(NamedTuple):
    """Old names and new: pages as a list from old to new, serials as the sorted old ones, of both pools.

    ``dead``: serials of dead lives that somebody names; None: all of them keep theirs.
    """

    prefill: Incarnation
    decode: Incarnation
    prefill_pages: tuple[int, ...]
    decode_pages: tuple[int, ...]
    prefill_serials: tuple[int, ...]
    decode_serials: tuple[int, ...]
    dead: frozenset[tuple[Incarnation, int]] | None


class Renaming:
    """Applies one choice of names to every kind of value. Holds: ``done``, by kind, the number of each renamed part."""

    def __init__(self, names: Names) -> None:
        self.prefill, self.decode = names.prefill, names.decode
        self.done: tuple[dict[int, int], ...] = ({}, {}, {}, {}, {})
        self._pages = {names.prefill: names.prefill_pages, names.decode: names.decode_pages}
        ranked = ((names.prefill, names.prefill_serials), (names.decode, names.decode_serials))
        self._dead = names.dead
        self._serials = {life: {old: new for new, old in enumerate(serials, 1)} for life, serials in ranked}

    def page(self, life: Incarnation, page: int) -> int:
        """Name a page of a pool."""
        pages = self._pages.get(life)
        return page if pages is None else pages[page]

    def serial(self, life: Incarnation, serial: int) -> int:
        """Name a serial of a pool that somebody names."""
        serials = self._serials.get(life)
        return serial if serials is None or serial <= 0 else serials[serial]

    def lot(self, life: Incarnation, lot: Lot) -> Lot:
        """Name a lot and its pages."""
        return Lot(self.serial(life, lot.serial), tuple(self.page(life, page) for page in lot.pages))

    def tag(self, tag: Tag) -> Tag:
        """Name a tag; one that nobody names becomes one that matches nothing."""
        life, serial, page = tag
        serials = self._serials.get(life)
        if serials is None:
            kept = self._dead is None or serial <= 0 or (life, serial) in self._dead
            return tag if kept else (life, GONE, 0)
        if serial == GONE:
            return tag
        if serial > 0 and serial not in serials:
            return (life, GONE, 0)
        return (life, self.serial(life, serial), self.page(life, page))

    def grant(self, grant: Grant) -> Grant:
        """Name what a grant holds."""
        pages = tuple(self.page(self.decode, page) for page in grant.pages)
        return replace(grant, serial=self.serial(self.decode, grant.serial), pages=pages)

    def manifest(self, manifest: Manifest) -> Manifest:
        """Name what a manifest promises."""
        life = manifest.origin
        return replace(
            manifest,
            origin_serial=self.serial(life, manifest.origin_serial),
            origin_pages=tuple(self.page(life, page) for page in manifest.origin_pages),
            shared=tuple((self.serial(life, serial), n) for serial, n in manifest.shared),
        )

    def pool(self, life: Incarnation, pool: Pool) -> Pool:
        """Name the lots and pages of a pool."""
        quarantined = (replace(entry, lot=self.lot(life, entry.lot)) for entry in pool.quarantined.values())
        held = (replace(entry, lot=self.lot(life, entry.lot)) for entry in pool.held.values())
        return replace(
            pool,
            free=tuple(tuple(self.page(life, page) for page in chunk) for chunk in pool.free),
            next_serial=max(self._serials[life].values(), default=0) + 1,
            quarantined={entry.lot.serial: entry for entry in quarantined},
            held={entry.lot.serial: entry for entry in held},
        )

    # ---- processes

    def process(self, process: Process) -> Process:
        """Name what a process holds."""
        if isinstance(process, Gateway):
            return Gateway(self._gateway(process.node))
        if isinstance(process, Prefill):
            return Prefill(self._prefill(process.node), tuple(map(self._chunk, process.running)))
        return Decode(self._decode(process.node), tuple(map(self._sequence, process.running)), process.read)

    def _gateway(self, node: GatewayNode) -> GatewayNode:
        def named(handoff: GatewayHandoff) -> GatewayHandoff:
            return handoff if handoff.grant is None else replace(handoff, grant=self.grant(handoff.grant))

        return replace(node, handoffs={attempt: named(h) for attempt, h in node.handoffs.items()})

    def _prefill(self, node: PrefillNode) -> PrefillNode:
        life = self.prefill

        def named(handoff: PrefillHandoff) -> PrefillHandoff:
            return replace(
                handoff,
                grant=None if handoff.grant is None else self.grant(handoff.grant),
                lot=None if handoff.lot is None else self.lot(life, handoff.lot),
                shared=tuple(self.lot(life, lot) for lot in handoff.shared),
                found=tuple((self.serial(life, serial), n) for serial, n in handoff.found),
            )

        handoffs = {attempt: named(h) for attempt, h in node.handoffs.items()}
        return replace(node, handoffs=handoffs, pool=self.pool(life, node.pool))

    def _decode(self, node: DecodeNode) -> DecodeNode:
        life = self.decode

        def named(handoff: DecodeHandoff) -> DecodeHandoff:
            return replace(
                handoff,
                remote=None if handoff.remote is None else self.lot(life, handoff.remote),
                own=tuple(self.lot(life, lot) for lot in handoff.own),
                manifest=None if handoff.manifest is None else self.manifest(handoff.manifest),
                bad=frozenset(self.page(life, page) for page in handoff.bad),
            )

        handoffs = {attempt: named(h) for attempt, h in node.handoffs.items()}
        return replace(node, handoffs=handoffs, pool=self.pool(life, node.pool))

    def _chunk(self, chunk: Chunk) -> Chunk:
        bad = tuple(sorted(self.page(self.prefill, page) for page in chunk.bad))
        return chunk._replace(tags=tuple(map(self.tag, chunk.tags)), bad=bad)

    def _sequence(self, sequence: Sequence) -> Sequence:
        life = self.decode

        def named(row: Row) -> Row:
            expected = None if row.expected is None else self.tag(row.expected)
            return Row(self.page(life, row.page), expected, self.serial(life, row.own_serial))

        wrong = tuple((self.page(life, page), position, held) for page, position, held in sequence.wrong)
        bad = tuple(sorted(self.page(life, page) for page in sequence.bad))
        return sequence._replace(rows=tuple(map(named, sequence.rows)), bad=bad, wrong=wrong)

    # ---- what lies between

    def message(self, envelope: Envelope) -> Envelope:
        """Name what a message holds."""
        message = envelope.message
        match message:
            case Grant():
                return replace(envelope, message=self.grant(message))
            case Dispatch():
                return replace(envelope, message=replace(message, grant=self.grant(message.grant)))
            case Sent():
                serial = self.serial(self.decode, message.grant_serial)
                manifest = self.manifest(message.manifest)
                return replace(envelope, message=replace(message, grant_serial=serial, manifest=manifest))
        return envelope

    def write(self, write: Write) -> Write:
        """Name where a write goes and what it reads."""
        source = self.cell(write.source) if isinstance(write.source, Cell) else self.page(write.writer, write.source)
        return write._replace(
            page=self.page(self.decode, write.page),
            serial=self.serial(self.decode, write.serial) if write.target == self.decode else write.serial,
            source=source,
            source_tag=None if write.source_tag is None else self.tag(write.source_tag),
        )

    def cell(self, cell: Cell) -> Cell:
        """Name the tags that a page shows."""
        head = None if cell.head is None else self.tag(cell.head)
        tail = None if cell.tail is None else (self.tag(cell.tail[0]), cell.tail[1])
        return cell._replace(head=head, tail=tail)

    def cells(self, life: Incarnation, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        """Name a pool's pages and the tags that they show."""
        named = {self.page(life, page): self.cell(cell) for page, cell in enumerate(cells)}
        return tuple(named[page] for page in range(len(cells)))


class _Lives:
    """What is remembered while the same workers live: which serials each part names, and every choice of names."""

    def __init__(self, prefill: Incarnation, decode: Incarnation) -> None:
        self.prefill, self.decode = prefill, decode
        self.named: tuple[dict[int, int], ...] = ({}, {}, {})
        self.sets: dict[Named, int] = {}
        self.values: list[Named] = []
        self.unions: dict[tuple[int, ...], int] = {}
        self.renamings: dict[tuple[int, int, int], Renaming] = {}

    def set_of(self, named: Named) -> int:
        """Number what is named."""
        number = self.sets.setdefault(named, len(self.values))
        if number == len(self.values):
            self.values.append(named)
        return number


PROCESS, NETWORK, WRITES, PREFILL_CELLS, DECODE_CELLS = range(5)


class Canon:
    """Gives every world the one name that all its renamings share."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._orders: dict[int, int] = {}
        self._order_ids: dict[tuple[int, ...], int] = {}
        self._lives: dict[tuple[Incarnation, ...], _Lives] = {}
        self._around: dict[int, _Lives] = {}

    def of(self, world: World) -> World:
        """Give a world its names."""
        gateway, prefill, decode, network, writes, prefill_cells, decode_cells, clients, around = world
        lives = self._around.get(around) or self._meet(around)
        names = lives.named
        processes = names[PROCESS]
        parts: tuple[int, ...] = (
            processes.get(gateway, -1),
            processes.get(prefill, -1),
            processes.get(decode, -1),
            names[NETWORK].get(network, -1),
            names[WRITES].get(writes, -1),
        )
        if -1 in parts:
            parts = self._look(lives, world)
        union = lives.unions.get(parts, -1)
        if union < 0:
            union = self._unite(lives, parts)
        orders = self._orders
        key = (orders.get(prefill, -1), orders.get(decode, -1), union)
        if -1 in key:
            key = (self._order(prefill), self._order(decode), union)
        renaming = lives.renamings.get(key) or self._renaming(lives, key)
        return World(
            self._put(renaming, PROCESS, gateway),
            self._put(renaming, PROCESS, prefill),
            self._put(renaming, PROCESS, decode),
            self._put(renaming, NETWORK, network),
            self._put(renaming, WRITES, writes),
            self._put(renaming, PREFILL_CELLS, prefill_cells),
            self._put(renaming, DECODE_CELLS, decode_cells),
            clients,
            around,
        )

    def _meet(self, around: int) -> _Lives:
        who = self.tables.around[around].lives
        lives = self._lives.get(who)
        if lives is None:
            lives = self._lives[who] = _Lives(who[PREFILL], who[DECODE])
        self._around[around] = lives
        return lives

    def _look(self, lives: _Lives, world: World) -> tuple[int, ...]:
        kinds = (PROCESS, PROCESS, PROCESS, NETWORK, WRITES)
        return tuple(self._naming(lives, kind, number) for kind, number in zip(kinds, world[:5], strict=True))

    def _naming(self, lives: _Lives, kind: int, number: int) -> int:
        named = lives.named[kind]
        found = named.get(number)
        if found is None:
            collect = _Collector(lives.prefill, lives.decode)
            collect.see(self._value(kind, number), self.tables)
            found = named[number] = lives.set_of(collect.named())
        return found

    def _unite(self, lives: _Lives, parts: tuple[int, ...]) -> int:
        each = [lives.values[number] for number in parts]
        prefill, decode, dead = (frozenset[Any]().union(*kind) for kind in zip(*each, strict=True))
        lives.unions[parts] = lives.set_of((prefill, decode, dead))
        return lives.unions[parts]

    def _order(self, number: int) -> int:
        """Number the new names of a pool's pages: the order in which its node lists them."""
        found = self._orders.get(number)
        if found is None:
            listed = list(_pages(self.tables.steps.processes[number].node))
            order = tuple(listed.index(page) for page in range(len(listed)))
            found = self._orders[number] = self._order_ids.setdefault(order, len(self._order_ids))
        return found

    def _renaming(self, lives: _Lives, key: tuple[int, int, int]) -> "Renaming":
        orders = list(self._order_ids)
        prefill, decode, dead = lives.values[key[2]]
        names = Names(
            lives.prefill,
            lives.decode,
            orders[key[0]],
            orders[key[1]],
            tuple(sorted(prefill)),
            tuple(sorted(decode)),
            dead if self.tables.bounds.settled else None,
        )
        lives.renamings[key] = Renaming(names)
        return lives.renamings[key]

    def _value(self, kind: int, number: int) -> object:
        tables = self.tables
        if kind == PROCESS:
            return tables.steps.processes[number]
        return tables.networks[number] if kind == NETWORK else tables.writes[number]

    def _put(self, renaming: "Renaming", kind: int, number: int) -> int:
        done = renaming.done[kind]
        after = done.get(number)
        if after is None:
            after = done[number] = self._rename(renaming, kind, number)
        return after

    def _rename(self, renaming: "Renaming", kind: int, number: int) -> int:
        tables = self.tables
        if kind == PROCESS:
            return tables.steps.processes.id_of(renaming.process(tables.steps.processes[number]))
        if kind == NETWORK:
            network = tables.networks[number]
            messages = tables.steps.messages
            named = sorted(messages.id_of(renaming.message(messages[each])) for each in network.messages)
            return tables.networks.id_of(Network(tuple(named), network.tokens))
        if kind == WRITES:
            writes = sorted(map(renaming.write, tables.writes[number]), key=repr)
            return tables.writes.id_of(tuple(writes))
        life = renaming.prefill if kind == PREFILL_CELLS else renaming.decode
        return tables.cells.id_of(renaming.cells(life, tables.cells[number]))


def _pages(node: object) -> Iterable[int]:
    if isinstance(node, DecodeNode):
        for handoff in node.handoffs.values():
            for lot in (handoff.remote, *handoff.own):
                yield from lot.pages if lot is not None and lot.serial not in node.pool.quarantined else ()
    if isinstance(node, PrefillNode):
        for entry in node.pool.held.values():
            yield from entry.lot.pages
    if isinstance(node, DecodeNode | PrefillNode):
        for aside in node.pool.quarantined.values():
            yield from aside.lot.pages
        for chunk in reversed(node.pool.free):
            yield from reversed(chunk)


class _Collector:
    """Finds the serials that somebody names."""

    def __init__(self, prefill: Incarnation, decode: Incarnation) -> None:
        self.lives = (prefill, decode)
        self.prefill: set[int] = set()
        self.decode: set[int] = set()
        self.dead: set[tuple[Incarnation, int]] = set()

    def named(self) -> Named:
        """Give what was collected."""
        return frozenset(self.prefill), frozenset(self.decode), frozenset(self.dead)

    def see(self, value: object, tables: Tables) -> None:
        """Collect from one part of a world."""
        if isinstance(value, Network):
            for message in value.messages:
                self._message(tables.steps.messages[message])
        elif isinstance(value, Gateway | Prefill | Decode):
            self._process(value)
        elif isinstance(value, tuple):
            for write in value:
                self._write(write)

    def _message(self, envelope: Envelope) -> None:
        match envelope.message:
            case Grant() as grant:
                self._add(self.lives[1], grant.serial)
            case Dispatch(grant=grant):
                self._add(self.lives[1], grant.serial)
            case Sent(grant_serial=serial, manifest=manifest):
                self._add(self.lives[1], serial)
                self._manifest(manifest)

    def _write(self, write: Write) -> None:
        self._add(write.target, write.serial)
        if write.source_tag is not None:
            self._add(write.source_tag[0], write.source_tag[1])

    def _process(self, process: object) -> None:
        if isinstance(process, Gateway):
            for held in process.node.handoffs.values():
                if held.grant is not None:
                    self._add(self.lives[1], held.grant.serial)
        elif isinstance(process, Prefill):
            self._pool(self.lives[0], process.node.pool)
            for job in process.node.handoffs.values():
                if job.grant is not None:
                    self._add(self.lives[1], job.grant.serial)
                for lot in job.lots:
                    self._add(self.lives[0], lot.serial)
            for chunk in process.running:
                for life, serial, _ in chunk.tags:
                    self._add(life, serial)
        elif isinstance(process, Decode):
            self._decode(process)

    def _decode(self, process: Decode) -> None:
        self._pool(self.lives[1], process.node.pool)
        for handoff in process.node.handoffs.values():
            for lot in (handoff.remote, *handoff.own):
                if lot is not None:
                    self._add(self.lives[1], lot.serial)
            if handoff.manifest is not None:
                self._manifest(handoff.manifest)
        for sequence in process.running:
            for row in sequence.rows:
                self._add(self.lives[1], row.own_serial)
                if row.expected is not None:
                    self._add(row.expected[0], row.expected[1])

    def _pool(self, life: Incarnation, pool: Pool) -> None:
        for serial in (*pool.quarantined, *pool.held):
            self._add(life, serial)

    def _manifest(self, manifest: Manifest) -> None:
        self._add(manifest.origin, manifest.origin_serial)
        for serial, _ in manifest.shared:
            self._add(manifest.origin, serial)

    def _add(self, life: Incarnation, serial: int) -> None:
        if serial > 0:
            if life == self.lives[0]:
                self.prefill.add(serial)
            elif life == self.lives[1]:
                self.decode.add(serial)
            else:
                self.dead.add((life, serial))


Canonical = Callable[[World], World]
