"""The abstract state that a world of the search stands for.

What a world has forgotten (a closed attempt's counts, the pool of a dead process) is not said: a field then has a value
that claims least, and is not compared. Prefix reuse, other layouts and confused completions have no counterpart here.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.handoff import DecodeHandoff, GatewayHandoff, PrefillHandoff
from kvfence.protocol.lots import Quarantined
from kvfence.protocol.messages import Dispatch, Drained, Envelope, Grant, Offer, Sent
from kvfence.protocol.transitions import DecodePhase, Fence, PrefillPhase
from kvfence.prove.invariant import fields
from kvfence.prove.invariant.fields import CHANGING, FIXED
from kvfence.prove.pages import NOTHING, Cell, Write, owner
from kvfence.prove.processes import num_kv, rows_of
from kvfence.prove.world import DECODE, PREFILL, Tables, World

NOBODY = -1
_DECODE = {phase: number for number, phase in enumerate((None, *DecodePhase))}
_PREFILL = {phase: number for number, phase in enumerate((None, *PrefillPhase))}
_FENCES = {Fence.AT_RECEIPT: fields.RECEIPT, Fence.PEER_EXIT: fields.EXIT, Fence.NEW_SESSION: fields.SESSION}
_LANDED = {0: fields.POSTED, 1: fields.HEAD, 3: fields.SECOND, 7: fields.LANDED}
_FORGOTTEN_SERIALS = 1 << 30

Facts = dict[str, dict[tuple[Hashable, ...], Any]]
"""By field, what it says of what."""


class Known(Struct):
    """What a world says of one attempt, wherever that is written down."""

    num_tokens: int = 0
    placed: Incarnation | None = None
    decode: Incarnation | None = None
    session: str = ""
    granted: bool = False
    pages: tuple[int, ...] = ()
    serial: int = 0
    sources: tuple[int, ...] = ()
    at_decode: DecodeHandoff | None = None
    at_prefill: PrefillHandoff | None = None
    sent: bool = False
    drained: bool = False


class Observed:
    """A world in the words of the invariant. Holds: ``facts``; ``domains``, what there is of each sort.

    ``before``: a world that came before, which may remember what this one has forgotten.
    """

    def __init__(self, tables: Tables, world: World, before: "Observed | None" = None) -> None:
        self.tables, self.world = tables, world
        self.bounds = tables.bounds
        self.around = tables.around[world.around]
        self.decode = tables.decode(world.decode)
        self.prefill = tables.prefill(world.prefill)
        self.prefill_cells = tables.cells[world.prefill_cells]
        self.decode_cells = tables.cells[world.decode_cells]
        self.asked = tables.clients[world.clients].asked
        self.messages: list[Envelope] = [tables.steps.messages[n] for n in tables.networks[world.network].messages]
        self.writes: tuple[Write, ...] = tables.writes[world.writes]
        self.life: Incarnation = self.around.lives[PREFILL]
        self.lives = [Incarnation(f"prefill-{number + 1}") for number in range(self.around.born[PREFILL])]
        self.known = {number + 1: self._known_of(number + 1) for number in range(len(self.asked))}
        for number, earlier in before.known.items() if before is not None else ():
            known = self.known[number]
            known.placed = known.placed or earlier.placed
            known.num_tokens = known.num_tokens or earlier.num_tokens
            known.granted, known.decode = known.granted or earlier.granted, known.decode or earlier.decode
        self.facts: Facts = {name: {} for name in (*FIXED, *CHANGING)}
        self._say_fixed()
        for number, known in self.known.items():
            self._say_attempt(number, known)
        self._say_decode_pages()
        self._say_source_pages()
        self._say_between()

    @property
    def domains(self) -> dict[str, list[Any]]:
        """Give what there is of each sort."""
        sizes = [self.facts["size"][(number,)] for number in self.known]
        sources = [(life, page) for life in self.lives for page in range(len(self.prefill_cells))]
        return {
            "attempt": list(self.known),
            "index": list(range(max(sizes, default=1))),
            "page": list(range(len(self.decode_cells))),
            "source": sources,
            "life": list(self.lives),
            "request": [NOBODY, *range(len(self.bounds.requests))],
        }

    def say(self, name: str, *key_and_value: Any) -> None:
        """Note one fact: what it is of, then the value."""
        *key, value = key_and_value
        self.facts[name][tuple(key)] = value

    # ---- what is written down of an attempt

    def _known_of(self, number: int) -> Known:
        known = Known()
        for message in self.messages:
            self._hear(known, number, message)
        gateway = self.tables.gateway(self.world.gateway)
        handoffs: list[PrefillHandoff | GatewayHandoff] = [*self.prefill.node.handoffs.values()]
        handoffs += gateway.handoffs.values()
        for handoff in handoffs:
            if handoff.attempt.counter == number:
                self._remember(known, handoff)
        at_decode = next((h for h in self.decode.node.handoffs.values() if h.attempt.counter == number), None)
        if at_decode is not None:
            self._hold(known, at_decode)
        for write in self.writes:
            if write.attempt == number:
                known.placed, known.decode, known.granted = write.writer, write.target, True
                known.session = known.session or write.session
                known.serial = write.source_tag[1] if write.source_tag is not None else known.serial
        return known

    def _hear(self, known: Known, number: int, envelope: Envelope) -> None:
        message = envelope.message
        attempt: AttemptId | None = getattr(message, "attempt", None)
        if attempt is None or attempt.counter != number:
            return
        current = envelope.receiver == self.around.lives[DECODE]
        match message:
            case Offer():
                known.num_tokens, known.placed, known.decode = message.num_tokens, message.prefill, envelope.receiver
            case Grant():
                known.granted, known.decode, known.session = True, envelope.sender, message.session
            case Dispatch():
                known.granted, known.decode, known.placed = True, message.decode, envelope.receiver
                known.num_tokens, known.session = message.num_tokens, message.grant.session
            case Sent():
                known.placed, known.decode, known.granted = envelope.sender, envelope.receiver, True
                known.serial, known.sources = message.manifest.origin_serial, message.manifest.origin_pages
                known.sent = known.sent or current
            case Drained():
                known.drained = known.drained or current

    def _remember(self, known: Known, handoff: PrefillHandoff | GatewayHandoff) -> None:
        known.decode = handoff.decode
        known.num_tokens = handoff.num_tokens or known.num_tokens
        if handoff.grant is not None:
            known.granted, known.session, known.pages = True, handoff.grant.session, handoff.grant.pages
        if isinstance(handoff, GatewayHandoff):
            known.placed = handoff.prefill
            return
        known.placed, known.at_prefill = self.life, handoff
        if handoff.lot is not None:
            known.serial, known.sources = handoff.lot.serial, handoff.lot.pages

    def _hold(self, known: Known, handoff: DecodeHandoff) -> None:
        known.at_decode, known.decode = handoff, self.around.lives[DECODE]
        known.num_tokens = handoff.num_tokens or known.num_tokens
        if handoff.prefill in self.lives:
            known.placed = handoff.prefill
        if handoff.remote is not None:
            known.granted = True
            known.pages = handoff.remote.pages if len(handoff.remote.pages) >= len(known.pages) else known.pages
        if handoff.manifest is not None and not known.serial:
            known.serial, known.sources = handoff.manifest.origin_serial, handoff.manifest.origin_pages

    # ---- attempts

    def _say_fixed(self) -> None:
        for number, known in self.known.items():
            request = self.asked[number - 1]
            num_tokens = known.num_tokens or self.bounds.requests[request].num_tokens
            self.say("size", number, self.bounds.capacity.num_pages(num_tokens))
            self.say("placed", number, known.placed or self.life)
            self.say("request", number, request)
            self.say("partial", number, num_tokens % self.bounds.capacity.page_size != 0)
        for life in self.lives:
            self.say("layout", life, True)
            for page in range(len(self.prefill_cells)):
                self.say("pool", (life, page), life)
        self.say("fence", _FENCES[self.bounds.fence])
        self.say("batch_max", self.bounds.batch_pages_max)
        self.say("nobody", NOBODY)

    def _say_attempt(self, number: int, known: Known) -> None:
        handoff = known.at_decode
        phase = _DECODE[handoff.phase if handoff is not None else None]
        if handoff is None and known.granted and known.decode != self.around.lives[DECODE]:
            phase = fields.LOST
        if phase or self.around.born[DECODE] == 1 or not known.granted:
            self.say("decode", number, phase)
        if handoff is not None:
            self._say_decode(number, phase, handoff)
        else:
            self.say("passing", number, False)
        over = self.decode.node.lives.floors.get(self.around.lives[0], 0) > number
        if over or self.around.born[DECODE] == 1:
            self.say("over", number, over)
        if known.granted and (known.placed is not None or self.around.born[PREFILL] == 1):
            self.say("granted", number, True)
            if known.session or self.bounds.fence is not Fence.NEW_SESSION:
                self.say("session_of", number, int(known.session or 0))
        self.say("sent", number, known.sent)
        self.say("drained", number, known.drained)
        if known.placed is not None:
            self.say("worker", number, known.placed)
        if known.placed == self.life or self.around.born[PREFILL] == 1:
            self.say("forgotten", number, self.prefill.node.lives.floors.get(self.around.lives[0], 0) > number)
            self._say_work(number, known.at_prefill)
        if known.serial:
            self.say("serial", number, known.serial)
            for index, page in enumerate(known.sources):
                self.say("source", number, index, (known.placed, page))

    def _say_decode(self, number: int, phase: int, handoff: DecodeHandoff) -> None:
        self.say("passing", number, bool(handoff.passes))
        if handoff.remote is not None and phase in _TABLED:
            self.say("num_table", number, len(handoff.remote.pages))
            for index, page in enumerate(handoff.remote.pages):
                self.say("table", number, index, page)
        if phase in (fields.VERIFYING, fields.RUNNING):
            self.say("manifest", number, number)

    def _say_work(self, number: int, handoff: PrefillHandoff | None) -> None:
        self.say("prefill", number, _PREFILL[handoff.phase if handoff is not None else None])
        if handoff is None:
            return
        for name, value in (
            ("num_sealed", handoff.num_sealed),
            ("num_posted", handoff.num_posted),
            ("num_landed", handoff.num_landed),
            ("holds", handoff.lot is not None),
            ("computing", bool(handoff.passes)),
            ("computed", handoff.computed),
            ("batch", bool(handoff.batches)),
            ("unknown", handoff.unknown),
            ("quiet", handoff.source_quiet),
            ("owes", handoff.answer),
        ):
            self.say(name, number, value)
        if handoff.num_tokens and handoff.phase is not PrefillPhase.FAILED:
            self.say("num_send", number, self.bounds.capacity.num_pages(handoff.num_tokens))

    # ---- pages

    def _say_decode_pages(self) -> None:
        node = self.decode.node
        for page, cell in enumerate(self.decode_cells):
            self.say("page", page, fields.FREE)
            self.say("former", page, False)
            self.say("stray", page, 0)
            self._say_cell(page, cell)
        for number, known in self.known.items():
            if known.at_decode is not None:
                self._say_held(number, known.at_decode)
        for entry in node.pool.quarantined.values():
            self._say_quarantined(entry)
        for sequence in self.decode.running:
            for page, _, _ in sequence.wrong:
                self.say("foul", page, True)
        for life in self.lives:
            self.say("writer", life, life in node.lives.writers)
        self.say("started", 0 not in node.pool.quarantined)

    def _say_held(self, number: int, handoff: DecodeHandoff) -> None:
        remote, phase = handoff.remote, handoff.phase
        if remote is not None and phase in (DecodePhase.GRANTED, DecodePhase.VERIFYING, DecodePhase.RUNNING):
            kind = fields.ADOPTED if phase is DecodePhase.RUNNING else fields.REMOTE
            self._say_owned(number, remote.pages, kind)
        for lot in handoff.own:
            self._say_owned(number, lot.pages, fields.OWN)
        if phase is DecodePhase.RUNNING:
            read = self.decode.read and any(s.attempt == handoff.attempt for s in self.decode.running)
            tokens = num_kv(handoff) + read
            for position, row in enumerate(rows_of(self.decode.node, handoff)):
                if row.own_serial:
                    self.say("used", row.page, position * self.bounds.capacity.page_size < tokens)
                    self.say("head_kind", row.page, self._own_kind(row.page, row.expected))
                    self.say("head_own", row.page, number)

    def _own_kind(self, page: int, expected: object) -> int:
        head = self.decode_cells[page].head
        return fields.BY_DECODE if head == expected else self.facts["head_kind"].get((page,), fields.BARE)

    def _say_owned(self, number: int, pages: Iterable[int], kind: int) -> None:
        for index, page in enumerate(pages):
            self.say("page", page, kind)
            self.say("owner", page, number)
            self.say("foul", page, False)
            if kind != fields.OWN:
                self.say("index", page, index)

    def _say_quarantined(self, entry: Quarantined) -> None:
        for index, page in enumerate(entry.lot.pages):
            self.say("page", page, fields.QUARANTINED)
            self.say("former", page, entry.attempt is None)
            if entry.attempt is not None:
                self.say("owner", page, entry.attempt.counter)
                self.say("index", page, index)
                self.say("drains", page, entry.drains)
                for life in self.lives:
                    self.say("suspect", page, life, life in entry.writers)

    def _say_cell(self, page: int, cell: Cell) -> None:
        if cell.head is not None and cell.head[0] in self.lives:
            life, serial, source = cell.head
            self.say("head_kind", page, fields.ORIGIN)
            self.say("head_life", page, life)
            self.say("head_serial", page, serial)
            self.say("head_page", page, (life, source))
        request, position = owner(cell.held) or (NOBODY, -1)
        for half in ("first", "second"):
            self.say(f"{half}_of", page, request)
            self.say(f"{half}_at", page, position)
        if cell.tail is not None and cell.tail[0][0] in self.lives:
            (life, serial, source), held = cell.tail
            request, position = owner(held) or (NOBODY, -1)
            self.say("tail_life", page, life)
            self.say("tail_serial", page, serial)
            self.say("tail_page", page, (life, source))
            self.say("digest_of", page, request)
            self.say("digest_at", page, position)

    def _say_source_pages(self) -> None:
        node, life = self.prefill.node, self.life
        for page, cell in enumerate(self.prefill_cells):
            t = (life, page)
            self.say("source_state", t, fields.S_FREE)
            self.say("source_serial", t, cell.head[1] if cell.head is not None and cell.head[0] == life else 0)
            request, position = owner(cell.held) or (NOBODY, -1)
            self.say("source_of", t, request)
            self.say("source_at", t, position)
            self.say("slack", t, cell.slack != NOTHING)
        for number, known in self.known.items():
            handoff = known.at_prefill
            for index, page in enumerate(handoff.lot.pages if handoff is not None and handoff.lot is not None else ()):
                sealed = handoff is not None and index < handoff.num_sealed
                self._say_source((life, page), number, index, fields.S_SEALED if sealed else fields.S_GRANTED)
        for entry in node.pool.quarantined.values():
            for index, page in enumerate(entry.lot.pages):
                number = entry.attempt.counter if entry.attempt is not None else 0
                self._say_source((life, page), number, index, fields.S_QUARANTINED)

    def _say_source(self, t: tuple[Incarnation, int], number: int, index: int, state: int) -> None:
        self.say("source_state", t, state)
        self.say("source_owner", t, number)
        self.say("source_index", t, index)

    # ---- between

    def _say_between(self) -> None:
        for life in self.lives:
            self.say("dead", life, life != self.life and life not in self.around.dying)
        self.say("next_serial", self.life, self.prefill.node.pool.next_serial)
        self.say("session", self.around.session)
        self.say("leaked", False)
        for number, known in self.known.items():
            handoff = known.at_prefill
            landed = handoff.num_landed if handoff is not None else 0
            sent = known.sent or self.facts["decode"].get((number,)) in (fields.VERIFYING, fields.RUNNING)
            for index in range(self.facts["size"][(number,)] if sent else landed):
                self.say("write", number, index, fields.LANDED)
            for index in range(handoff.num_posted if handoff is not None else 0, self.facts["size"][(number,)]):
                if handoff is not None:
                    self.say("write", number, index, fields.UNPOSTED)
        for write in self.writes:
            self._say_write(write)

    def _say_write(self, write: Write) -> None:
        cell = write.source if isinstance(write.source, Cell) else self.prefill_cells[write.source]
        vouched = owner(cell.tail[1]) if cell.tail is not None else None
        if vouched is None or write.attempt not in self.known:
            return
        number, index = write.attempt, vouched[1]
        if write.source_tag is not None:
            self.say("source", number, index, (write.writer, write.source_tag[2]))
        self.say("captured", number, index, isinstance(write.source, Cell))
        if write.misdirected:
            self.say("write", number, index, fields.LANDED)
            if not write.ended and write.parts:
                self.say("stray", write.page, 1 if write.parts == 1 else 3)
                self.say("stray_by", write.page, write.writer)
            return
        self.say("table", number, index, write.page)
        past = self.around.fenced and write.target != self.around.lives[DECODE]
        rebuilt = self.bounds.fence is Fence.NEW_SESSION and int(write.session or 0) < self.around.session
        over = write.refused or ((past or rebuilt) and write.parts != 7)
        self.say("write", number, index, fields.ENDED if over else _LANDED[write.parts])
        self.say("corrupted", number, index, write.corrupt and write.parts & 2 != 0)


_TABLED = (fields.GRANTED, fields.VERIFYING, fields.RUNNING, fields.REVOKED)
