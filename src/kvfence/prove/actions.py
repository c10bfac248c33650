"""What drivers do, one thing at a time; and what is done only when nothing else can happen.

Each function gives the edges of one kind of action from a world.
"""

from collections.abc import Callable, Iterable, Iterator

from kvfence.core.ids import FORMER_LIFE, PassId, SessionId
from kvfence.protocol.commands import RunPass
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    DeadlinePassed,
    FloorMoved,
    PagesSealed,
    PassBegan,
    PassEnded,
    PeerGone,
    Resend,
    SessionRebuilt,
    Submit,
    Verified,
)
from kvfence.protocol.handoff import DecodeHandoff
from kvfence.protocol.messages import EndReason
from kvfence.protocol.transitions import DecodePhase, Fence, PrefillPhase
from kvfence.prove import lives
from kvfence.prove.effects import LONG_NS, Draft, own_bytes, request_id
from kvfence.prove.locality import reads
from kvfence.prove.model import Edge, Model
from kvfence.prove.pages import NOTHING, Cell, Tag, Write, content
from kvfence.prove.processes import (
    Chunk,
    Prefill,
    Sequence,
    num_kv,
    origin,
    prompts_ready,
    rows_of,
    sequences_ready,
    tags_of,
)
from kvfence.prove.world import DECODE, GATEWAY, PREFILL, Clients, World

PASS = PassId(1)


# ---- messages and clients -----------------------------------------------------------------------------------------


@reads("gateway", "clients", "around")
def submit(model: Model, world: World) -> Iterator[Edge]:
    """The next client asks."""
    clients = model.tables.clients[world.clients]
    if not may_ask(model, clients):
        return
    waiting = [request for request, times in enumerate(clients.submitted) if not times]
    for request in waiting if model.bounds.swapped else waiting[:1]:
        yield ask(model, world, request, "submit")


def may_ask(model: Model, clients: Clients) -> bool:
    """Do fewer clients wait for an answer than may?"""
    return not model.bounds.asking_max or clients.num_asking < model.bounds.asking_max


def ask(model: Model, world: World, request: int, kind: str) -> Edge:
    """Submit a request."""
    draft = Draft(model.tables, world)
    clients, asked = draft.clients, model.bounds.requests[request]
    times = tuple(times + (each == request) for each, times in enumerate(clients.submitted))
    draft.clients = clients._replace(submitted=times)
    _, prefill, decode = draft.around.lives
    salt = f"salt-{asked.tenant}" if model.bounds.cached_lots_max else ""
    event = Submit(request_id(request), asked.num_tokens, asked.max_tokens, prefill, decode, LONG_NS, salt)
    draft.submit(request, event)
    return Edge(kind, request, *draft.done())


def deliver(model: Model, world: World) -> Iterator[Edge]:
    """Any message in flight arrives."""
    last = -1
    for message in model.tables.networks[world.network].messages:
        if message != last:
            yield model.deliver(world, message)
        last = message


def token(model: Model, world: World, *, keep: bool = False) -> Iterator[Edge]:
    """The oldest token on its way arrives."""
    network = model.tables.networks[world.network]
    if network.tokens:
        rest = world.network
        if not keep:
            rest = model.tables.networks.id_of(network._replace(tokens=network.tokens[1:]))
        draft = Draft(model.tables, world._replace(network=rest))
        draft.take(GATEWAY, model.tables.steps.feed(world.gateway, network.tokens[0]))
        yield Edge("token", network.tokens[0], *draft.done())


@reads("gateway", "prefill", "prefill_cells", "writes", "clients", "around")
def prefill_floor(model: Model, world: World) -> Iterator[Edge]:
    """Prefill hears the gateway's floor."""
    return _floor(model, world, PREFILL)


@reads("gateway", "decode", "decode_cells", "clients", "around")
def decode_floor(model: Model, world: World) -> Iterator[Edge]:
    """Decode hears the gateway's floor."""
    return _floor(model, world, DECODE)


def _floor(model: Model, world: World, role: int) -> Iterator[Edge]:
    gateway = model.tables.gateway(world.gateway)
    life = gateway.lives.incarnation
    node = model.tables.steps.processes[world[role]].node
    if node.lives.floor(life) < gateway.floor and gateway.floor > 1:
        yield model.feed(world, role, FloorMoved(life, gateway.floor), "floor", (role, gateway.floor))


# ---- prefill ------------------------------------------------------------------------------------------------------


@reads("prefill", "prefill_cells")
def prefill_begin(model: Model, world: World) -> Iterator[Edge]:
    """Prefill compares heads and begins to compute every prompt that is ready."""
    process = model.tables.prefill(world.prefill)
    if process.running:
        return
    ready = prompts_ready(process.node)
    if not ready:
        return
    cells = model.tables.cells[world.prefill_cells]
    chunks = []
    for handoff in ready:
        tags = tags_of(process.node, handoff)
        chunks.append(Chunk(handoff.attempt, tags, handoff.num_shared, handoff.num_tokens, wrong_heads(cells, tags)))
    event = PassBegan(PassId(process.node.last_pass + 1), tuple(chunk.attempt for chunk in chunks))
    draft = Draft(model.tables, world)
    draft.take(PREFILL, model.tables.steps.feed(world.prefill, event))
    _put_process(draft, PREFILL, running=tuple(chunks))
    yield Edge("prefill-begin", event.attempts, *draft.done())


def wrong_heads(cells: tuple[Cell, ...] | list[Cell], tags: tuple[Tag, ...]) -> tuple[int, ...]:
    """Give the pages that show another tag than theirs."""
    return tuple(tag[2] for tag in tags if cells[tag[2]].head != tag)


def _put_process(draft: Draft, role: int, **changes: object) -> None:
    processes = draft.tables.steps.processes
    process = processes[draft.processes[role]]
    draft.processes[role] = processes.id_of(process._replace(**changes))  # type: ignore[arg-type]


@reads("prefill", "prefill_cells", "writes", "clients", "around")
def prefill_end(model: Model, world: World) -> Iterator[Edge]:
    """Prefill has computed its prompts: pages written, heads compared again, pages sealed and reported."""
    process = model.tables.prefill(world.prefill)
    if not process.running:
        return
    draft = Draft(model.tables, world)
    bad, finished = {}, []
    for chunk in process.running:
        _compute(model, draft, process, chunk)
    for chunk in process.running:
        wrong = tuple(sorted({*chunk.bad, *wrong_heads(draft.prefill_cells, chunk.tags)}))
        if wrong:
            bad[chunk.attempt] = wrong
        finished.append((chunk.attempt, EndReason.STOP))
    _put_process(draft, PREFILL, running=())
    pass_id = next(iter(process.node.passes), PASS)
    event = PassEnded(pass_id, tuple(bad.items()), tuple(finished))
    draft.take(PREFILL, model.tables.steps.feed(draft.processes[PREFILL], event))
    for chunk in process.running:
        if chunk.attempt not in bad:
            _seal(model, draft, chunk)
    yield Edge("prefill-end", event, *draft.done())


def _compute(model: Model, draft: Draft, process: Prefill, chunk: Chunk) -> None:
    """Write a prompt's own pages, also those of one that was given up while the pass ran, and read all of them."""
    page_size = model.bounds.capacity.page_size
    drifted = "drift" in model.bounds.setups
    request = draft.request_of(chunk.attempt.counter)
    held = {lot.serial: set(lot.pages) for lot in (each.lot for each in process.node.pool.held.values())}
    for position, (_, serial, page) in enumerate(chunk.tags):
        if position < chunk.num_shared:
            continue
        if page not in held.get(serial, ()):
            draft.stray_writes.append(f"prefill's pass into page {page}")
        cell = draft.prefill_cells[page]
        whole = (position + 1) * page_size <= chunk.num_tokens
        foreign = cell.held not in (NOTHING, own_bytes(model.tables, request, position))
        slack = cell.held if not whole and foreign and "unzeroed" in model.bounds.setups else NOTHING
        mine = own_bytes(model.tables, request, position)
        if drifted:
            mine = content(request, position, drifted=True)
        draft.prefill_cells[page] = cell._replace(held=mine, slack=slack)
    wrong = [
        tag for position, tag in enumerate(chunk.tags[: chunk.num_shared])
        if draft.prefill_cells[tag[2]].held != own_bytes(model.tables, request, position)
    ]  # fmt: skip
    if wrong:
        tainted = draft.clients.tainted | {chunk.attempt.counter}
        draft.clients = draft.clients._replace(tainted=tainted)


def _seal(model: Model, draft: Draft, chunk: Chunk) -> None:
    """Stamp the computed pages of a prompt that still runs and report them."""
    node = draft.tables.prefill(draft.processes[PREFILL]).node
    handoff = node.handoffs.get(chunk.attempt)
    if handoff is None or handoff.phase is not PrefillPhase.RUNNING or handoff.num_sealed >= len(chunk.tags):
        return
    zeroed = True
    for tag in chunk.tags[chunk.num_shared :]:
        cell = draft.prefill_cells[tag[2]]
        draft.prefill_cells[tag[2]] = cell._replace(tail=(tag, cell.held))
        zeroed = zeroed and cell.slack == NOTHING
    digest = " ".join(str(draft.prefill_cells[tag[2]].held) for tag in chunk.tags)
    event = PagesSealed(chunk.attempt, len(chunk.tags), zeroed, digest)
    draft.take(PREFILL, model.tables.steps.feed(draft.processes[PREFILL], event))


# ---- writes -------------------------------------------------------------------------------------------------------


@reads("writes", "prefill_cells", "decode_cells", "decode", "around")
def land(model: Model, world: World) -> Iterator[Edge]:
    """The next part of a write lands, or the receiver refuses it; those of a batch that was given up need not."""
    for write in dict.fromkeys(model.tables.writes[world.writes]):
        if not write.live or write.ended:
            continue
        yield from lands(model, world, write)


@reads("writes", "prefill_cells", "decode_cells", "decode", "around")
def land_late(model: Model, world: World) -> Iterator[Edge]:
    """A part of a write lands although its batch was given up or its writer is dead."""
    for write in dict.fromkeys(model.tables.writes[world.writes]):
        if not write.live and not write.ended:
            yield from lands(model, world, write)


def lands(model: Model, world: World, write: Write) -> Iterator[Edge]:
    """Give the ways in which a write goes on."""
    fence = model.bounds.fence
    around = model.tables.around[world.around]
    draft = Draft(model.tables, world)
    closed = fence is Fence.NEW_SESSION and int(write.session or 0) < around.session
    if closed or (around.fenced and write.target != around.lives[DECODE]):
        draft.change(write, write._replace(refused=True))
        yield Edge("write-refused", write, *draft.done())
        return
    if fence is Fence.AT_RECEIPT:
        if draft.may_land(write):
            draft.land_whole(write)
            yield Edge("land", (write, -1), *draft.done())
        else:
            draft.change(write, write._replace(refused=True))
            yield Edge("write-refused", write, *draft.done())
        return
    for part in write.next_parts(model.bounds.in_order):
        draft = Draft(model.tables, world)
        draft.land(write, part)
        yield Edge("land", (write, part), *draft.done())


@reads("prefill", "writes", "prefill_cells", "clients", "around")
def batch_end(model: Model, world: World) -> Iterator[Edge]:
    """A batch of which every write has ended returns."""
    writes = [write for write in model.tables.writes[world.writes] if write.live]
    for counter in dict.fromkeys(write.attempt for write in writes):
        if all(write.ended for write in writes if write.attempt == counter):
            yield model.end_batch(world, counter, kind="batch-end")


# ---- decode -------------------------------------------------------------------------------------------------------


@reads("decode", "decode_cells", "clients", "around")
def verify(model: Model, world: World) -> Iterator[Edge]:
    """Decode compares heads, tails and digests of what landed with the manifest; it may adopt at once."""
    process = model.tables.decode(world.decode)
    for handoff in process.node.handoffs.values():
        if handoff.phase is DecodePhase.VERIFYING:
            event = _verified(model, world, handoff)
            yield model.feed(world, DECODE, event, "verify", event)


def _verified(model: Model, world: World, handoff: DecodeHandoff) -> Verified:
    cells = model.tables.cells[world.decode_cells]
    manifest, remote = handoff.manifest, handoff.remote
    bad: list[int] = []
    sound = True
    stamps: list[object] = []
    promised = [origin(manifest.origin_tag(i)) for i in range(len(manifest.origin_pages))] if manifest else []
    for index, page in enumerate(remote.pages if remote else ()):
        cell, tag = cells[page], promised[index] if index < len(promised) else None
        if tag is None or cell.head != tag or cell.tail is None or cell.tail[0] != tag:
            bad.append(page)
        sound = sound and cell.tail is not None and cell.tail[1] == cell.held
        stamps += [cell.tail] if cell.tail is not None else []
    digests = (manifest.digest if manifest else "").split()
    expected = [(tag, int(digest)) for tag, digest in zip(promised, digests, strict=False)]
    sound = sound and stamps == expected
    finished = EndReason.LENGTH if handoff.max_tokens == 1 else None
    return Verified(handoff.attempt, tuple(bad), sound, finished)


@reads("decode", "decode_cells", "around")
def decode_begin(model: Model, world: World) -> Iterator[Edge]:
    """Decode takes every sequence that is ready into a pass, grows what needs it, and compares heads."""
    process = model.tables.decode(world.decode)
    node = process.node
    if process.running or node.passes:
        return
    ready = sequences_ready(node)
    if not ready:
        return
    page_size = node.capacity.page_size
    grow = tuple((h.attempt, 1) for h in ready if num_kv(h) // page_size >= len(rows_of(node, h)))
    event = PassBegan(PassId(node.last_pass + 1), tuple(h.attempt for h in ready), grow)
    draft = Draft(model.tables, world)
    draft.take(DECODE, model.tables.steps.feed(world.decode, event))
    taken = next((c.attempts for c in draft.outcomes[0].commands if isinstance(c, RunPass)), ())
    if taken:
        after = model.tables.decode(draft.processes[DECODE]).node
        running = tuple(_sequence(draft, after, after.handoffs[attempt]) for attempt in taken)
        _put_process(draft, DECODE, running=running, read=False)
    elif len(draft.outcomes[0].commands) == 1 and not draft.outcomes[0].sends:
        return  # none can grow before a page comes back
    yield Edge("decode-begin", taken, *draft.done())


def _sequence(draft: Draft, node: DecodeNode, handoff: DecodeHandoff) -> Sequence:
    page_size = draft.tables.bounds.capacity.page_size
    kv = num_kv(handoff)
    rows = rows_of(node, handoff)[: kv // page_size + 1]
    bad = tuple(row.page for row in rows if draft.decode_cells[row.page].head != row.expected)
    return Sequence(handoff.attempt, rows, kv % page_size == 0, bad)


@reads("decode", "decode_cells", "clients")
def decode_read(model: Model, world: World) -> Iterator[Edge]:
    """The running pass writes each new token's keys and values and reads every page."""
    process = model.tables.decode(world.decode)
    if not process.running or process.read:
        return
    draft = Draft(model.tables, world)
    states = lives.states_of(model, world)
    for sequence in process.running:
        row, position = sequence.rows[-1], len(sequence.rows) - 1
        if states.get(row.page, (None, 0))[1] != row.own_serial:
            draft.stray_writes.append(f"decode's pass into page {row.page}")
        if sequence.starts:
            own = draft.own(sequence.attempt.counter, position)
            draft.decode_cells[row.page] = draft.decode_cells[row.page]._replace(held=own, slack=NOTHING)
    read = []
    for sequence in process.running:
        wrong = []
        for position, row in enumerate(sequence.rows):
            held = draft.decode_cells[row.page].held
            if held != draft.own(sequence.attempt.counter, position):
                wrong.append((row.page, position, held))
        read.append(sequence._replace(wrong=tuple(wrong)))
    _put_process(draft, DECODE, running=tuple(read), read=True)
    yield Edge("decode-read", tuple(sequence.attempt for sequence in read), *draft.done())


@reads("decode", "decode_cells", "clients", "around")
def decode_end(model: Model, world: World) -> Iterator[Edge]:
    """Decode compares heads again and reports the pass."""
    process = model.tables.decode(world.decode)
    if not process.read:
        return
    draft = Draft(model.tables, world)
    cells = draft.decode_cells
    bad, finished = [], []
    for sequence in process.running:
        after = {row.page for row in sequence.rows if cells[row.page].head != row.expected}
        if after or sequence.bad:
            bad.append((sequence.attempt, tuple(sorted(after.union(sequence.bad)))))
        handoff = process.node.handoffs.get(sequence.attempt)
        if handoff is not None and handoff.num_emitted + 1 >= handoff.max_tokens:
            finished.append((sequence.attempt, EndReason.LENGTH))
    _put_process(draft, DECODE, running=(), read=False)
    pass_id = next(iter(process.node.passes))
    event = PassEnded(pass_id, tuple(bad), tuple(finished))
    draft.take(DECODE, model.tables.steps.feed(draft.processes[DECODE], event))
    yield Edge("decode-end", event, *draft.done())


@reads("decode", "around")
def fence_start(model: Model, world: World) -> Iterator[Edge]:
    """The supervisor proves that no life before decode's writes any more; from then on that is true."""
    node = model.tables.decode(world.decode).node
    if 0 not in node.pool.quarantined:
        return
    draft = Draft(model.tables, world)
    draft.around = draft.around._replace(fenced=True)
    if model.bounds.fence is Fence.NEW_SESSION:
        lives.rebuild(model, draft)
    else:
        draft.take(DECODE, model.tables.steps.feed(world.decode, PeerGone(FORMER_LIFE, reaped=True)))
    yield Edge("fence-start", None, *draft.done())


# ---- patience -----------------------------------------------------------------------------------------------------


def resend(model: Model, world: World) -> Iterator[Edge]:
    """What is unanswered is said again; only where that leads to anything."""
    for role in (GATEWAY, PREFILL, DECODE):
        node = model.tables.steps.processes[world[role]].node
        for attempt in node.handoffs:
            edge = model.feed(world, role, Resend(attempt), "resend", (role, attempt.counter))
            if edge.world != world and _leads_on(model, edge.world):
                yield edge


def _leads_on(model: Model, world: World) -> bool:
    """Does one of the messages just said change anything when it arrives?"""
    return any(edge.world._replace(network=0) != world._replace(network=0) or _answered(model, world, edge.world)
               for edge in deliver(model, world))  # fmt: skip


def _answered(model: Model, before: World, after: World) -> bool:
    networks = model.tables.networks
    return bool(set(networks[after.network].messages) - set(networks[before.network].messages))


def repair(model: Model, world: World) -> Iterator[Edge]:
    """The supervisor fences what only it can: it recycles the writer, or has an engine rebuilt."""
    writes = model.tables.writes[world.writes]
    hanging = any(not write.ended and write.writer != FORMER_LIFE for write in writes)
    decode, prefill = model.tables.decode(world.decode).node, model.tables.prefill(world.prefill).node
    if hanging or decode.pool.quarantined:
        draft = Draft(model.tables, world)
        if model.bounds.fence is Fence.NEW_SESSION:
            lives.rebuild(model, draft)
        else:
            lives.kill_prefill(model, draft, reaped=True)
        yield Edge("repair", None, *draft.done())
    elif prefill.pool.quarantined:
        draft = Draft(model.tables, world)
        session = SessionId("again")
        draft.take(PREFILL, model.tables.steps.feed(world.prefill, SessionRebuilt(session)))
        yield Edge("prefill-rebuilt", None, *draft.done())


def time(model: Model, world: World) -> Iterator[Edge]:
    """Time passes: what is still open is over."""
    for role in (GATEWAY, PREFILL, DECODE):
        node = model.tables.steps.processes[world[role]].node
        for attempt in node.handoffs:
            edge = model.feed(world, role, DeadlinePassed(attempt), "deadline", (role, attempt.counter))
            if edge.world != world or edge.broken:
                yield edge


ORDINARY: tuple[Callable[[Model, World], Iterable[Edge]], ...] = (
    deliver,
    token,
    lives.gateway_notice,
    lives.prefill_notice,
    lives.decode_notice,
    lives.reap,
    fence_start,
    land,
    batch_end,
    verify,
    prefill_begin,
    prefill_end,
    decode_begin,
    decode_read,
    decode_end,
    prefill_floor,
    decode_floor,
    submit,
)

PATIENCE: tuple[Callable[[Model, World], Iterable[Edge]], ...] = (resend, repair, time)
