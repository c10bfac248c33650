"""Whose bytes did each answer read? Worked out from the recorded traces alone, slot by slot.

Every write into decode's pool is in a trace: what prefill posted, what decode wrote itself. Every read is, too: a
pass reads all slots of its sequences. So the traces say, for each token that left, who had written what it was
computed from. Not for: deciding anything in a server; no node can ask this.
"""

from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.protocol.commands import FIRST_TOKEN, Adopt, Emit, Grew, Post, RunPass, Send, StartPrefill, Verify
from kvfence.protocol.events import BatchEnded, Received, Submit
from kvfence.protocol.guards import Decision
from kvfence.protocol.messages import Abort, Dispatch, Grant, Offer, Sent
from kvfence.trace.record import TraceStep

M = TypeVar("M")


class Slot(Struct, frozen=True):
    """Who wrote one token's keys and values. ``generated``: by decode, as an answer grew; else a prompt's."""

    attempt: AttemptId
    generated: bool = False


class Traces(Struct, frozen=True):
    """The recorded steps of one pair, by role."""

    page_size: int
    gateway: tuple[TraceStep, ...]
    prefill: tuple[TraceStep, ...]
    decode: tuple[TraceStep, ...]


class Reading(Struct):
    """One attempt as the traces tell it.

    Shapes:
        before: for each granted page, who had written its slots when it was granted.
        after: the same when decode began to read them.
    Units:
        num_sent: tokens that prefill said it sent. foreign: slots read, by who wrote them, tokens having left;
        num_own: slots of the attempt's own prompt that were read. origin_serial: prefill's grant it was computed in.
    """

    attempt: AttemptId
    request: str = ""
    num_tokens: int = 0
    max_tokens: int = 0
    serial: int = 0
    pages: tuple[int, ...] = ()
    posted: tuple[int, ...] = ()
    source: tuple[int, ...] = ()
    num_dispatched: int = 0
    num_sent: int = 0
    num_emitted: int = 0
    num_own: int = 0
    origin_serial: int = 0
    own_pages: tuple[int, ...] = ()
    before: tuple[tuple[Slot | None, ...], ...] = ()
    after: tuple[tuple[Slot | None, ...], ...] = ()
    foreign: dict[Slot, int] = {}
    decisions: list[Decision] = []
    steps: dict[str, int] = {}


def read_traces(traces: Traces) -> dict[AttemptId, Reading]:
    """Replay the traces and give every attempt's reading.

    ``Reading.steps``: the number of the trace line at which a thing happened, by ``role: what``.
    """
    book = _Book(traces.page_size)
    for step in traces.gateway:
        book.at_gateway(step)
    for step in traces.prefill:
        book.at_prefill(step)
    for step in traces.decode:
        book.at_decode(step)
    return book.readings


class _Table(Struct):
    """One running sequence: its pages in order, and the tokens in them."""

    pages: list[int]
    num_kv: int


class _Book:
    """Slots of decode's pool as the replay goes on."""

    def __init__(self, page_size: int) -> None:
        self.readings: dict[AttemptId, Reading] = {}
        self._page_size = page_size
        self._slots: dict[int, list[Slot | None]] = {}
        self._landed: dict[tuple[AttemptId, int], Post] = {}
        self._tables: dict[AttemptId, _Table] = {}
        self._pending: dict[int, dict[AttemptId, dict[Slot, int]]] = {}

    def _reading(self, attempt: AttemptId) -> Reading:
        return self.readings.setdefault(attempt, Reading(attempt))

    def _note(self, step: TraceStep, role: str) -> None:
        for decision in step.decisions:
            if decision.attempt is not None:
                self._reading(decision.attempt).decisions.append(decision)
        for command in step.commands:
            attempt = getattr(command, "attempt", None)
            if isinstance(command, Send):
                message = command.message
                attempt = getattr(message, "attempt", None)
                name = type(message).__name__
            else:
                name = type(command).__name__
            if attempt is not None:
                self._reading(attempt).steps.setdefault(f"{role}: {name}", step.n)

    # ---- gateway and prefill

    def at_gateway(self, step: TraceStep) -> None:
        """Learn which request an attempt serves."""
        self._note(step, "gateway")
        if isinstance(step.event, Submit):
            for offer in _messages(step, Offer):
                reading = self._reading(offer.attempt)
                reading.request = step.event.request
                reading.num_tokens, reading.max_tokens = offer.num_tokens, offer.max_tokens

    def at_prefill(self, step: TraceStep) -> None:
        """Learn what was dispatched to prefill and what it wrote where."""
        self._note(step, "prefill")
        event = step.event
        if isinstance(event, Received) and isinstance(event.envelope.message, Dispatch):
            dispatch = event.envelope.message
            self._reading(dispatch.attempt).num_dispatched = dispatch.num_tokens
        for command in step.commands:
            if isinstance(command, Post):
                self._landed[command.attempt, command.batch] = command
            elif isinstance(command, StartPrefill):
                self._reading(command.attempt).origin_serial = command.serial
        for sent in _messages(step, Sent):
            self._reading(sent.attempt).num_sent = sent.manifest.num_tokens
        if isinstance(event, BatchEnded) and event.success:
            reading, post = self._reading(event.attempt), self._landed.pop((event.attempt, event.batch))
            reading.posted += post.destination
            reading.source += post.source

    # ---- decode

    def at_decode(self, step: TraceStep) -> None:
        """Write and read slots as decode's commands say."""
        self._note(step, "decode")
        event = step.event
        if isinstance(event, Received) and isinstance(event.envelope.message, Offer):
            offer = event.envelope.message
            reading = self._reading(offer.attempt)
            reading.num_tokens, reading.max_tokens = offer.num_tokens, offer.max_tokens
        for command in step.commands:
            match command:
                case Send(message=Grant() as grant):
                    self._grant(grant)
                case Send(message=Abort(attempt=attempt)) | Verify(attempt=attempt):
                    self._land(attempt)
                case Adopt():
                    self._adopt(command)
                case Grew(attempt=attempt, pages=pages) if attempt in self._tables:
                    self._tables[attempt].pages += pages
                case RunPass(id=pass_id, attempts=attempts):
                    self._pending[pass_id] = {attempt: self._pass(attempt) for attempt in attempts}
                case Emit(id=pass_id, attempts=attempts):
                    self._emit(pass_id, attempts)

    def _page(self, page: int) -> list[Slot | None]:
        return self._slots.setdefault(page, [None] * self._page_size)

    def _show(self, pages: Iterable[int]) -> tuple[tuple[Slot | None, ...], ...]:
        return tuple(tuple(self._page(page)) for page in pages)

    def _grant(self, grant: Grant) -> None:
        reading = self._reading(grant.attempt)
        if not reading.pages:
            reading.pages, reading.serial = grant.pages, grant.serial
            reading.before = self._show(grant.pages)

    def _land(self, attempt: AttemptId) -> None:
        """Whole records land: the prompt's slots, and zeros behind them."""
        reading = self._reading(attempt)
        left = reading.num_sent or reading.num_tokens
        for page in reading.posted:
            here = max(0, min(self._page_size, left))
            self._slots[page] = [Slot(attempt)] * here + [None] * (self._page_size - here)
            left -= here

    def _adopt(self, adopt: Adopt) -> None:
        reading = self._reading(adopt.attempt)
        reading.after, reading.own_pages = self._show(adopt.pages), adopt.own
        whole, rest = divmod(reading.num_tokens, self._page_size)
        if rest:
            self._slots[adopt.own[0]] = list(self._page(adopt.pages[-1]))
        self._tables[adopt.attempt] = _Table([*adopt.pages[:whole], *adopt.own], reading.num_tokens)

    def _pass(self, attempt: AttemptId) -> dict[Slot, int]:
        """Write the new token's slot, read all up to it; give what others had written."""
        table = self._tables[attempt]
        index, offset = divmod(table.num_kv, self._page_size)
        self._page(table.pages[index])[offset] = Slot(attempt, generated=True)
        table.num_kv += 1
        slots = list(chain.from_iterable(self._page(page) for page in table.pages))[: table.num_kv]
        self._reading(attempt).num_own = slots.count(Slot(attempt))
        foreign: dict[Slot, int] = {}
        for slot in slots:
            if slot is not None and slot.attempt != attempt:
                foreign[slot] = foreign.get(slot, 0) + 1
        return foreign

    def _emit(self, pass_id: int, attempts: tuple[AttemptId, ...]) -> None:
        reads = self._pending.pop(pass_id, {}) if pass_id != FIRST_TOKEN else {}
        for attempt in attempts:
            reading = self._reading(attempt)
            reading.num_emitted += 1
            for slot, count in reads.get(attempt, {}).items():
                reading.foreign[slot] = max(count, reading.foreign.get(slot, 0))


def _messages(step: TraceStep, kind: type[M]) -> list[M]:
    return [c.message for c in step.commands if isinstance(c, Send) and isinstance(c.message, kind)]


class Leak(Struct, frozen=True):
    """One answer that was computed from other tenants' bytes. Units: slots by tenant; generated: of those, answers'."""

    request: str
    attempt: AttemptId
    slots: dict[str, int]
    generated: int
    num_tokens: int


def find_leaks(readings: dict[AttemptId, Reading], tenants: dict[str, str]) -> list[Leak]:
    """Give every attempt of which tokens left that were computed from another tenant's bytes.

    ``tenants``: tenant by request id; requests that are not in it are nobody's.
    """
    leaks = []
    for reading in readings.values():
        tenant = tenants.get(reading.request, "")
        slots: dict[str, int] = {}
        generated = 0
        for slot, count in reading.foreign.items():
            owner = readings[slot.attempt].request if slot.attempt in readings else ""
            other = tenants.get(owner, "")
            if other and other != tenant:
                slots[other] = slots.get(other, 0) + count
                generated += count if slot.generated else 0
        if slots:
            leaks.append(Leak(reading.request, reading.attempt, slots, generated, reading.num_emitted))
    return leaks
