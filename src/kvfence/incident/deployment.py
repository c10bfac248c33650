"""A deployment of the incident's own size: the production nodes on numpy ledgers, over pages that hold names for bytes.

One gateway, one prefill and one decode worker. Nothing is lost or late here: what is posted lands, in order, so that
the order of events is the oldest first. Transfers go over sessions, as the incident's did: what was quarantined comes
back when decode rebuilds its receiving engine.

Not for: faults (``kvfence.sim``) or real bytes (``runs.py``). Read ``production.py`` next.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, PassId, RequestId, SessionId
from kvfence.core.pages import PageState
from kvfence.driver.loop import NodeLoop, Rewrite, Stepper
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.incident.named_pages import NamedPages, Read, Running
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import (
    FIRST_TOKEN,
    Adopt,
    Command,
    Emit,
    Finish,
    Grew,
    Move,
    Post,
    Resubmit,
    RunPass,
    Send,
    StartPrefill,
    Stop,
    Verify,
)
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import (
    BatchEnded,
    Event,
    FloorMoved,
    PagesSealed,
    PassBegan,
    PassEnded,
    PeerUp,
    Received,
    SessionRebuilt,
    Submit,
    TokensArrived,
    Verified,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import EndReason, Envelope, Offer
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import step
from kvfence.protocol.transitions import DecodePhase, Fence, PageMove

GATEWAY, PREFILL, DECODE = (Incarnation(f"{number:032x}") for number in (1, 2, 3))
LAYOUT = "layout"
BATCH_PAGES_MAX = 1024
DEADLINE_NS = 3600 * 10**9
FLOOR_EVERY = 32
"""Answers between two floors, which let closed attempts be forgotten."""


class Ask(Struct, frozen=True):
    """One request. ``number``: from 1; names its bytes."""

    number: int
    name: str
    tenant: str
    num_tokens: int
    max_tokens: int


class Outcome(Struct):
    """What one request was answered and what its tokens were computed from.

    Units: foreign, zeroed in pages, the most that any token that left was computed from. ``tenants``: whose they were.
    """

    reason: EndReason | None = None
    num_tokens: int = 0
    foreign: int = 0
    zeroed: int = 0
    tenants: frozenset[str] = frozenset()


class Deployment:
    """Plays requests to their ends. Holds: ``outcomes`` by request, ``num_rebuilt`` sessions."""

    def __init__(
        self,
        rules: Rules,
        capacity: Capacity,
        rewrites: Sequence[Rewrite],
        *,
        zero_on_release: bool = False,
        stepper: Stepper = step,
    ) -> None:
        self.capacity = capacity
        self.outcomes: dict[str, Outcome] = {}
        self.num_rebuilt = 0
        self._zero = zero_on_release
        self._asks: dict[str, Ask] = {}
        self._asked: dict[AttemptId, Ask] = {}
        self._tenants: list[str] = ["nobody"]
        self._work: deque[Callable[[], None]] = deque()
        self._running: dict[AttemptId, Running] = {}
        self._taken: tuple[AttemptId, ...] = ()
        self._read: dict[AttemptId, Read] = {}
        self._num_open = 0
        self._pages = NamedPages(capacity.decode_pages, capacity.page_size)
        self._begin(rules, rewrites, stepper)

    def _begin(self, rules: Rules, rewrites: Sequence[Rewrite], stepper: Stepper) -> None:
        capacity, fence = self.capacity, Fence.NEW_SESSION
        pools = new_pool(capacity.prefill_pages), new_pool(capacity.decode_pages)
        prefill = PrefillNode(Lives(PREFILL), capacity, LAYOUT, pools[0], batch_pages_max=BATCH_PAGES_MAX)
        decode = start_decode(rules, DecodeNode(Lives(DECODE), capacity, LAYOUT, fence, pools[1]))
        ledgers = (
            NumpyLedger(capacity.prefill_pages, PageState.FREE),
            NumpyLedger(capacity.decode_pages, PageState.QUARANTINED),
        )
        self._gateway = NodeLoop(rules, GatewayNode(Lives(GATEWAY), capacity), None, self._at_gateway, stepper)
        self._prefill = NodeLoop(rules, prefill, ledgers[0], self._at_prefill, stepper)
        self._decode = NodeLoop(rules, decode, ledgers[1], self._at_decode, stepper)
        self._loops: dict[str, Callable[[Event], None]] = {
            GATEWAY: self._gateway.feed,
            PREFILL: self._prefill.feed,
            DECODE: self._decode.feed,
        }
        self._prefill.rewrites = list(rewrites)
        for one in self._loops:
            for other in self._loops:
                if one != other:
                    self._loops[one](PeerUp(Incarnation(other), writes=(one, other) == (DECODE, PREFILL)))
        self._rebuild()

    # ---- running

    def run(self, asks: Sequence[Ask], concurrency: int) -> None:
        """Let so many clients at once ask, in order, until all have heard an end."""
        waiting = deque(asks)
        self._asks.update((ask.name, ask) for ask in asks)
        self._tenants += [ask.tenant for ask in asks]
        while waiting or self._num_open:
            if self._work:
                self._work.popleft()()
            elif waiting and self._num_open < concurrency:
                self._submit(waiting.popleft())
            elif not self._pass():
                self._relieve()

    def _submit(self, ask: Ask) -> None:
        self._num_open += 1
        self.outcomes[ask.name] = Outcome()
        request = RequestId(ask.name)
        self._gateway.feed(Submit(request, ask.num_tokens, ask.max_tokens, PREFILL, DECODE, DEADLINE_NS))

    def _relieve(self) -> None:
        """Nothing goes on: what waits for pages needs a fence, and no hand-off is under way that it would cut."""
        if not self._decode.node.pool.quarantined:
            raise RuntimeError("nothing goes on, and no page is quarantined")
        self._rebuild()

    def _rebuild(self) -> None:
        self.num_rebuilt += 1
        self._decode.feed(SessionRebuilt(SessionId(f"session-{self.num_rebuilt}")))

    def _send(self, sender: Incarnation, command: Send) -> None:
        received = Received(Envelope(sender, command.to, command.message))
        self._work.append(lambda: self._loops[command.to](received))

    # ---- the gateway

    def _at_gateway(self, command: Command) -> Iterable[Event] | None:
        match command:
            case Send(message=message):
                if isinstance(message, Offer):
                    self._asked[message.attempt] = self._asks[self._gateway.node.handoffs[message.attempt].request]
                self._send(GATEWAY, command)
            case Resubmit():
                c = command
                again = (c.num_tokens, c.max_tokens, PREFILL, DECODE, c.remaining_ns, c.salt, c.timer)
                return [Submit(c.request, *again)]
            case Finish(request=request, reason=reason):
                self.outcomes[request].reason = reason
                self._num_open -= 1
                if len(self.outcomes) % FLOOR_EVERY == 0:
                    self._work.append(self._move_floors)
        return None

    def _move_floors(self) -> None:
        floor = FloorMoved(GATEWAY, self._gateway.node.floor)
        self._prefill.feed(floor)
        self._decode.feed(floor)

    # ---- prefill

    def _at_prefill(self, command: Command) -> Iterable[Event] | None:
        match command:
            case Send():
                self._send(PREFILL, command)
            case StartPrefill():
                self._work.append(lambda: self._compute(command))
            case Post():
                return [self._land(command)]
        return None

    def _compute(self, command: StartPrefill) -> None:
        """Compute and seal a whole prompt, which is posted as far as the batch bound allows."""
        attempt, pass_id = command.attempt, PassId(self._prefill.node.last_pass + 1)
        self._prefill.feed(PassBegan(pass_id, (attempt,)))
        self._prefill.feed(PassEnded(pass_id, finished=((attempt, EndReason.STOP),)))
        self._prefill.feed(PagesSealed(attempt, len(command.pages), tails_zeroed=True, digest=str(attempt)))

    def _land(self, post: Post) -> BatchEnded:
        """Write the pages of a batch: bytes of this request, heads that name prefill's own use of its pages."""
        handoff = self._prefill.node.handoffs[post.attempt]
        serial = handoff.lot.serial if handoff.lot is not None else 0
        if post.session != self._decode.node.session:
            return BatchEnded(post.attempt, post.batch, success=False, source_quiet=True)
        self._pages.land(self._asked[post.attempt].number, serial, post.source, post.destination)
        return BatchEnded(post.attempt, post.batch, success=True, source_quiet=True)

    # ---- decode

    def _at_decode(self, command: Command) -> Iterable[Event] | None:
        match command:
            case Send():
                self._send(DECODE, command)
            case Move(move=PageMove.RELEASE | PageMove.FENCE, pages=pages) if self._zero:
                self._pages.zero(pages)
            case Verify():
                self._work.append(lambda: self._verify(command))
            case Adopt():
                self._adopt(command)
            case Grew(attempt=attempt, serial=serial, pages=pages):
                self._pages.extend(self._running[attempt], serial, pages)
            case RunPass(attempts=attempts):
                self._taken = attempts
            case Emit(id=pass_id, attempts=attempts):
                self._emit(pass_id, attempts)
            case Stop(attempt=attempt):
                self._running.pop(attempt, None)
        return None

    def _verify(self, command: Verify) -> None:
        """Compare the heads of all pages granted with what the manifest promised for them, and report."""
        bad = self._pages.mismatches(command.pages, command.manifest)
        handoff = self._decode.node.handoffs[command.attempt]
        finished = EndReason.LENGTH if handoff.max_tokens == 1 else None
        self._decode.feed(Verified(command.attempt, bad, not bad, finished))

    def _adopt(self, command: Adopt) -> None:
        attempt, handoff = command.attempt, self._decode.node.handoffs[command.attempt]
        number = self._asked[attempt].number
        running = self._pages.adopt(number, handoff.num_tokens, command.pages, command.manifest)
        if len(running.pages) < len(command.pages):
            self._pages.copy(command.pages[-1], command.own[0])
        self._pages.extend(running, command.own_serial, command.own)
        self._running[attempt] = running

    def _pass(self) -> bool:
        """Run one pass over all that are ready; False where there is none."""
        handoffs, page_size = self._decode.node.handoffs, self.capacity.page_size
        ready = tuple(a for a in self._running if handoffs[a].phase is DecodePhase.RUNNING and not handoffs[a].ending)
        if not ready:
            return False
        grow = tuple((a, 1) for a in ready if self._running[a].num_kv // page_size >= len(self._running[a].pages))
        pass_id = PassId(self._decode.node.last_pass + 1)
        self._decode.feed(PassBegan(pass_id, ready, grow))
        if not self._taken:
            return False
        bad, finished = [], []
        for attempt in self._taken:
            running = self._running[attempt]
            self._read[attempt] = self._pages.read(running)
            if wrong := self._read[attempt].bad:
                bad.append((attempt, wrong))
            if running.num_new >= handoffs[attempt].max_tokens:
                finished.append((attempt, EndReason.LENGTH))
        self._decode.feed(PassEnded(pass_id, tuple(bad), tuple(finished)))
        return True

    def _emit(self, pass_id: PassId, attempts: tuple[AttemptId, ...]) -> None:
        for attempt in attempts:
            ask, index = self._asked[attempt], 0
            outcome = self.outcomes[ask.name]
            outcome.num_tokens += 1
            if pass_id != FIRST_TOKEN:
                index, read = self._running[attempt].num_new - 1, self._read.pop(attempt)
                tenants = {self._tenants[owner] for owner in read.owners} - {ask.tenant}
                outcome.foreign = max(outcome.foreign, read.foreign if tenants else 0)
                outcome.zeroed = max(outcome.zeroed, read.zeroed)
                outcome.tenants |= tenants
            arrived = TokensArrived(DECODE, attempt, index, 1)
            self._work.append(lambda arrived=arrived: self._gateway.feed(arrived))  # type: ignore[misc]
