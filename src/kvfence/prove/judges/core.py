"""The core of a hand-off, small enough to be written a second time by hand: ``spec/HandOff.tla`` mirrors it.

One decode and one prefill node, stepped by the real ``step``. The gateway is the environment: it offers attempts in
order, and every grant becomes a Dispatch. Pages hold one token, so that no tail is copied; a computation is one event,
a decode pass another; nothing is resent. Writes land head, bytes, tail, and late ones after their batch was given up.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from kvfence.core.ids import AttemptId, BatchId, Incarnation, PassId
from kvfence.core.manifest import Manifest
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Adopt, Command, Post, Send, StartPrefill
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    BatchEnded,
    Event,
    PagesSealed,
    PassBegan,
    PassEnded,
    PeerGone,
    Received,
    Verified,
)
from kvfence.protocol.guards import Rules
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import Abort, Cancel, Commit, Dispatch, EndReason, Envelope, Grant, Message, Offer
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import step
from kvfence.protocol.transitions import DecodePhase, Fence

GATEWAY, PREFILL, DECODE = (Incarnation(name) for name in ("gateway", "prefill", "decode"))
NOTHING = (0, 0)
BROKEN = (0, 1)
"""Bytes that a broken transfer left."""

Bytes = tuple[int, int]
"""Whose page, which page of it: 0 is the page that decode writes itself."""


class Config(Struct, frozen=True):
    """One core world. ``sizes``: pages of each prompt. The rest: how often each thing may go wrong."""

    name: str
    sizes: tuple[int, ...]
    decode_pages: int
    prefill_pages: int
    batch: int = 1
    cancels: int = 0
    stalls: int = 0
    duplicates: int = 0
    corrupts: int = 0
    deaths: int = 0
    absent: tuple[str, ...] = ()


class Core(NamedTuple):
    """One state. ``writes``: (attempt, page, part that lands next, late). ``budget``: in the order of ``Config``."""

    decode: DecodeNode
    prefill: PrefillNode
    messages: frozenset[Message]
    writes: frozenset[tuple[int, int, int, bool]]
    pages: tuple[tuple[Bytes, Bytes, Bytes], ...]
    sources: tuple[Bytes, ...]
    granted: tuple[tuple[int, ...], ...]
    taken: tuple[tuple[int, ...], ...]
    out: tuple[int, ...]
    leaked: bool
    dead: bool
    budget: tuple[int, int, int, int, int]


def start(config: Config) -> Core:
    """Give the state in which it begins: both have met, every page is free."""
    capacity = Capacity(1, 1 << 20, config.prefill_pages, config.decode_pages)
    decode = DecodeNode(
        Lives(DECODE, frozenset({GATEWAY, PREFILL}), frozenset({PREFILL})),
        capacity,
        "layout",
        Fence.PEER_EXIT,
        new_pool(config.decode_pages),
    )
    met = Lives(PREFILL, frozenset({GATEWAY, DECODE}))
    prefill = PrefillNode(met, capacity, "layout", new_pool(config.prefill_pages), config.batch)
    number = len(config.sizes)
    bare = ((NOTHING,) * 3,) * config.decode_pages
    budget = (config.cancels, config.stalls, config.duplicates, config.corrupts, config.deaths)
    nothing: tuple[tuple[int, ...], ...] = ((),) * number
    sources = (NOTHING,) * config.prefill_pages
    return Core(
        decode, prefill, frozenset(), frozenset(), bare, sources, nothing, nothing, (0,) * number, False, False, budget
    )


class Machine:
    """Gives what can happen next."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = Rules.without(*config.absent) if config.absent else Rules.all()

    def steps(self, core: Core) -> Iterator[tuple[str, Core]]:
        """Give every next state, with the name of what happens."""
        yield from self._environment(core)
        yield from self._deliveries(core)
        yield from self._landings(core)
        if not core.dead:
            yield from self._prefill(core)
        yield from self._decode(core)

    # ---- nodes

    def _feed(self, core: Core, event: Event, *, prefill: bool = False) -> Core:
        """Step a node, and carry out what it says."""
        result = step(self.rules, core.prefill if prefill else core.decode, event)
        after = core._replace(prefill=result.node) if prefill else core._replace(decode=result.node)  # type: ignore[arg-type]
        for command in result.commands:
            after = self._carry_out(after, command)
        return after

    def _carry_out(self, core: Core, command: Command) -> Core:
        match command:
            case Send(to=to, message=message) if to != GATEWAY and not (core.dead and to == PREFILL):
                return core._replace(messages=core.messages | {message})
            case Send(message=Grant() as grant):
                number = grant.attempt.counter
                granted = _put(core.granted, number - 1, grant.pages)
                size = self.config.sizes[number - 1]
                dispatch = Dispatch(grant.attempt, DECODE, grant, size, 1)
                return core._replace(granted=granted, messages=core.messages | {dispatch})
            case Post(attempt=attempt, source=source, destination=destination):
                first = core.granted[attempt.counter - 1].index(destination[0]) + 1
                posted = {(attempt.counter, first + offset, 0, False) for offset in range(len(source))}
                return core._replace(writes=core.writes | posted)
            case StartPrefill(attempt=attempt, pages=pages):
                return core._replace(taken=_put(core.taken, attempt.counter - 1, pages))
            case Adopt(attempt=attempt, own=own):
                head = (attempt.counter, 0)
                return core._replace(pages=_put(core.pages, own[0], (head, *core.pages[own[0]][1:])))
        return core

    # ---- the environment

    def _environment(self, core: Core) -> Iterator[tuple[str, Core]]:
        known = {attempt.counter for attempt in core.decode.handoffs}
        new = min(set(range(1, len(self.config.sizes) + 1)) - known, default=0)
        if new and not core.dead:
            offer = Offer(_attempt(new), PREFILL, self.config.sizes[new - 1], 2, 1)
            yield "offer", self._feed(core, Received(Envelope(GATEWAY, DECODE, offer)))
        if core.budget[0]:
            spent = core._replace(budget=_put(core.budget, 0, core.budget[0] - 1))
            for number in sorted({*known, new} - {0}):
                if number == new and core.dead:
                    continue
                after = self._feed(spent, Received(Envelope(GATEWAY, DECODE, Cancel(_attempt(number)))))
                yield "cancel", after
        if core.budget[4] and not core.dead:
            spent = core._replace(budget=_put(core.budget, 4, core.budget[4] - 1), dead=True)
            quiet = spent._replace(writes=frozenset(), messages=frozenset())
            yield "die", self._feed(quiet, PeerGone(PREFILL, reaped=True))

    def _deliveries(self, core: Core) -> Iterator[tuple[str, Core]]:
        for message in sorted(core.messages, key=_key):
            once = core._replace(messages=core.messages - {message})
            yield f"deliver-{_key(message)[0]}", self._deliver(once, message)
            if core.budget[2]:
                spent = core._replace(budget=_put(core.budget, 2, core.budget[2] - 1))
                yield f"deliver-{_key(message)[0]}", self._deliver(spent, message)

    def _deliver(self, core: Core, message: Message) -> Core:
        to_prefill = isinstance(message, Dispatch | Commit | Abort)
        sender = GATEWAY if isinstance(message, Dispatch) else DECODE if to_prefill else PREFILL
        envelope = Envelope(sender, PREFILL if to_prefill else DECODE, message)
        return self._feed(core, Received(envelope), prefill=to_prefill)

    def _landings(self, core: Core) -> Iterator[tuple[str, Core]]:
        for write in sorted(core.writes):
            number, index, part, late = write
            held = (number, index) if late else core.sources[core.taken[number - 1][index - 1]]
            yield "land", self._landed(core, write, held)
            if part == 1 and core.budget[3]:
                spent = core._replace(budget=_put(core.budget, 3, core.budget[3] - 1))
                yield "land", self._landed(spent, write, BROKEN)

    def _landed(self, core: Core, write: tuple[int, int, int, bool], held: Bytes) -> Core:
        number, index, part, late = write
        page = core.granted[number - 1][index - 1]
        cell = _put(core.pages[page], part, held)
        writes = core.writes - {write}
        if part < 2:
            writes |= {(number, index, part + 1, late)}
        return core._replace(pages=_put(core.pages, page, cell), writes=writes)

    # ---- prefill

    def _prefill(self, core: Core) -> Iterator[tuple[str, Core]]:
        for attempt, handoff in core.prefill.handoffs.items():
            number = attempt.counter
            if handoff.phase.value == "running" and not handoff.computed:
                yield "compute", self._computed(core, attempt)
            if handoff.batches:
                batch = handoff.batches[0][0]
                if all(write[0] != number or write[3] for write in core.writes):
                    yield "batch-ends", self._feed(core, BatchEnded(attempt, batch, True, True), prefill=True)
                if core.budget[1]:
                    yield "gives-up", self._gives_up(core, attempt, batch)

    def _computed(self, core: Core, attempt: AttemptId) -> Core:
        pages = core.prefill.handoffs[attempt].pages
        for index, page in enumerate(pages):
            core = core._replace(sources=_put(core.sources, page, (attempt.counter, index + 1)))
        number = PassId(core.prefill.last_pass + 1)
        core = self._feed(core, PassBegan(number, (attempt,)), prefill=True)
        core = self._feed(core, PassEnded(number, finished=((attempt, EndReason.STOP),)), prefill=True)
        return self._feed(core, PagesSealed(attempt, len(pages), True, str(attempt.counter)), prefill=True)

    def _gives_up(self, core: Core, attempt: AttemptId, batch: BatchId) -> Core:
        spent = core._replace(budget=_put(core.budget, 1, core.budget[1] - 1))
        late = {(n, i, part, late or n == attempt.counter) for n, i, part, late in core.writes}
        return self._feed(spent._replace(writes=frozenset(late)), BatchEnded(attempt, batch, False, True), prefill=True)

    # ---- decode

    def _decode(self, core: Core) -> Iterator[tuple[str, Core]]:
        for handoff in core.decode.handoffs.values():
            if handoff.phase is DecodePhase.VERIFYING and handoff.remote is not None:
                yield "verify", self._feed(core, self._verified(core, handoff))
            if handoff.phase is DecodePhase.RUNNING:
                yield "pass", self._passed(core, handoff)

    def _emitted(self, core: Core, number: int, tokens: int) -> Core:
        return core._replace(out=_put(core.out, number - 1, tokens))

    def _verified(self, core: Core, handoff: DecodeHandoff) -> Verified:
        number, manifest = handoff.attempt.counter, handoff.manifest
        bad, sound = [], isinstance(manifest, Manifest)
        for index, page in enumerate(handoff.remote.pages if handoff.remote is not None else ()):
            head, held, tail = core.pages[page]
            if (head, tail) != ((number, index + 1),) * 2:
                bad.append(page)
            sound = sound and held == tail == (number, index + 1)
        return Verified(handoff.attempt, tuple(bad), sound)

    def _passed(self, core: Core, handoff: DecodeHandoff) -> Core:
        attempt, number = handoff.attempt, handoff.attempt.counter
        own, pass_id = handoff.own[0].pages[0], PassId(core.decode.last_pass + 1)
        head, _, tail = core.pages[own]
        core = core._replace(pages=_put(core.pages, own, (head, (number, 0), tail)))
        remote = handoff.remote.pages if handoff.remote is not None else ()
        rows = [*((page, (number, index + 1)) for index, page in enumerate(remote)), (own, (number, 0))]
        bad = tuple(page for page, tag in rows if core.pages[page][0] != tag)
        foreign = any(core.pages[page][1] != tag for page, tag in rows)
        core = self._feed(core, PassBegan(pass_id, (attempt,)))
        wrong = ((attempt, bad),) if bad else ()
        after = self._feed(core, PassEnded(pass_id, wrong, ((attempt, EndReason.LENGTH),)))
        emitted = after.decode.handoffs[attempt].num_emitted == 2
        return after._replace(leaked=after.leaked or (emitted and foreign))


def _key(message: Message) -> tuple[str, int]:
    """Name a message as the mirror does."""
    attempt: AttemptId = message.attempt  # type: ignore[union-attr]
    return type(message).__name__.lower(), attempt.counter


def _attempt(number: int) -> AttemptId:
    return AttemptId(GATEWAY, number)


def _put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


# ---- the projection ----------------------------------------------------------------------------------------------


def projected(config: Config, core: Core) -> tuple[Any, ...]:
    """Give what ``spec/HandOff.tla`` has of a state, field by field in the order of ``FIELDS``."""
    numbers = range(1, len(config.sizes) + 1)
    decode = {attempt.counter: handoff for attempt, handoff in core.decode.handoffs.items()}
    prefill = {attempt.counter: handoff for attempt, handoff in core.prefill.handoffs.items()}
    of: Callable[[Callable[[int], Any]], tuple[Any, ...]] = lambda each: tuple(each(number) for number in numbers)  # noqa: E731
    held = lambda n: decode[n].own[0].pages if n in decode and decode[n].own else ()  # noqa: E731
    aside = core.decode.pool.quarantined.values()
    quarantined = tuple((q.attempt.counter, q.lot.pages, q.drains) for q in aside if q.attempt is not None)
    return (
        of(lambda n: decode[n].phase.value if n in decode else "none"),
        core.granted,
        of(held),
        of(lambda n: decode[n].num_emitted if n in decode else 0),
        of(lambda n: prefill[n].phase.value if n in prefill else "none"),
        core.taken,
        of(lambda n: prefill[n].lot is not None if n in prefill else False),
        of(lambda n: prefill[n].computed if n in prefill else False),
        of(lambda n: prefill[n].num_posted if n in prefill else 0),
        of(lambda n: prefill[n].num_landed if n in prefill else 0),
        of(lambda n: bool(prefill[n].batches) if n in prefill else False),
        of(lambda n: prefill[n].unknown if n in prefill else False),
        of(lambda n: prefill[n].answer if n in prefill else False),
        frozenset(map(_key, core.messages)),
        core.writes,
        core.pages,
        core.sources,
        tuple(page for chunk in core.decode.pool.free for page in chunk),
        tuple(page for chunk in core.prefill.pool.free for page in chunk),
        tuple(attempt.counter for attempt in core.decode.waiting),
        tuple(attempt.counter for attempt in core.prefill.waiting),
        quarantined,
        core.leaked,
        core.dead,
        core.budget,
    )


FIELDS = (
    "dec", "rem", "own", "out", "pre", "src", "hold", "com", "pos", "lan", "bat", "unk", "ans", "M", "W", "dm", "pm",
    "dfree", "pfree", "dwait", "pwait", "quar", "leak", "dead", "b",
)  # fmt: skip
"""The fields of the mirror's one record."""


def graph(config: Config) -> tuple[set[Any], set[tuple[Any, Any]]]:
    """Give every reachable state and every edge that changes something, projected."""
    machine, first = Machine(config), start(config)
    seen: dict[Any, Core] = {projected(config, first): first}
    front, edges = [first], set()
    while front:
        core = front.pop()
        name = projected(config, core)
        for _, after in machine.steps(core):
            other = projected(config, after)
            if other != name:
                edges.add((name, other))
            if other not in seen:
                seen[other] = after
                front.append(after)
    return set(seen), edges
