"""The whole system in one process: three nodes, a network and memory, driven by one seed or in order.

Build a ``World``, call ``run``, then ask ``oracle.leaks()``, ``answers`` and ``pictures``. Where ``Setup.checked``,
every property of ``protocol/properties.py`` is checked after every step, and ``broken`` names those that failed.

Not for: deciding anything that nodes decide. A world only chooses what happens next.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct

from kvfence.core.ids import Incarnation, RequestId
from kvfence.driver.loop import Stepper
from kvfence.protocol import properties
from kvfence.protocol.admission import fits
from kvfence.protocol.events import Event, Resend
from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from kvfence.protocol.relevance import kinds_of, relevant_to
from kvfence.protocol.step import Node, Step, step
from kvfence.protocol.transitions import Fence
from kvfence.sim.cluster import Cluster
from kvfence.sim.memory import PagePicture
from kvfence.sim.mishaps import FAULT_KINDS, Mishaps
from kvfence.sim.oracle import Oracle, WrongRead
from kvfence.sim.process import Action, Setup, Surroundings
from kvfence.sim.workload import SimRequest

ACTIONS_MAX = 200_000
"""More than any run here takes; reaching it is a livelock."""

ROUNDS_MAX = 60
"""How often what is unanswered is said again before a run counts as stuck."""

WINDOW = 8
"""How far messages overtake each other."""


class Answer(Struct, frozen=True):
    """What a client was told: how its request ended, after how many tokens."""

    request: SimRequest
    reason: EndReason
    num_tokens: int


class World:
    """One run.

    Holds:
        ``answers``: by request. ``broken``: by property, the step at which it first failed.
        ``reached``: the *sometimes* properties that happened. ``decisions``: how often each guard gave each answer.
    """

    def __init__(self, setup: Setup, requests: Iterable[SimRequest], stepper: Stepper = step) -> None:
        self.setup = setup
        self.around = Surroundings(setup)
        self.waiting: list[SimRequest] = []
        self.answers: dict[RequestId, Answer] = {}
        self.ends: dict[RequestId, list[EndReason]] = {}
        self.misfits: set[RequestId] = set()
        self.broken: dict[str, int] = {}
        self.reached: set[str] = set()
        self.decisions: dict[tuple[str, str, str], int] = {}
        self.num_steps = 0
        self._requests: dict[RequestId, SimRequest] = {}
        self._stepper = stepper
        self._agreed: dict[Incarnation, Node] = {}
        self._weights: dict[str, float] = {}
        for request in requests:
            self.add(request)
        self.cluster = Cluster(self.around, self._step, self._finish)
        self._mishaps = Mishaps(self.around, self.cluster)

    def add(self, request: SimRequest) -> None:
        """Let one more client ask."""
        self.waiting.append(request)
        self._requests[request.id] = request
        self.ends[request.id] = []
        if not _runs(self.setup, request):
            self.misfits.add(request.id)

    # ---- what a driver of the whole knows (properties.World) ----

    @property
    def oracle(self) -> Oracle:
        """The judge of what was read."""
        return self.around.oracle

    @property
    def nodes(self) -> list[Node]:
        """The living nodes."""
        return [process.loop.node for process in self.cluster.processes]

    @property
    def disagreements(self) -> list[int]:
        """Pages of which a ledger and its node say different things."""
        for process in self.cluster.workers:
            node = process.loop.node
            if self._agreed.get(process.incarnation) is not node:  # pages move only in steps
                found = process.pages.disagreements(properties.held_lots(node))
                if found:
                    return found
                self._agreed[process.incarnation] = node
        return []

    @property
    def wrong_reads(self) -> list[WrongRead]:
        """Tokens that left although they were computed from bytes not their sequence's own."""
        return self.oracle.wrong_reads

    @property
    def stray_writes(self) -> list[str]:
        """Writes that landed where they no longer may."""
        return self.around.stray_writes

    @property
    def changed_sources(self) -> list[str]:
        """Posted writes that read a re-used page."""
        return self.cluster.landing.changed_sources

    @property
    def stale_slots(self) -> list[str]:
        """Pages posted with another request's bytes behind their last token."""
        return self.around.stale_slots

    def pictures(self, request: RequestId) -> list[tuple[PagePicture, ...]]:
        """Give what the pages granted to a request held: at the grant, and once more at adoption."""
        attempts = [a for a, asked in self.around.asked.items() if asked.id == request]
        return list(chain.from_iterable(d.pictures.get(a, []) for a in attempts for d in self.cluster.decodes))

    # ---- running ----

    def run(self, stop_at: str = "") -> "World":
        """Run until nothing is left to happen, or a property of this name breaks."""
        rng = self.around.rng
        for _ in range(ACTIONS_MAX):
            work = list(self._work())
            if not work:
                break
            if rng is None:
                self._do(work[0])
                continue
            actions = [*work, *self._mishaps.actions()]
            self._do(rng.choose(actions, [self._weight(action.kind) for action in actions]))
            if stop_at in self.broken:
                return self
        self._rest()
        self._check(at_rest=True)
        return self

    def advance(self) -> bool:
        """Do the most urgent thing that goes right; False where nothing is left."""
        action = next(self._work(), None)
        if action is not None:
            self._do(action)
        return action is not None

    def _weight(self, kind: str) -> float:
        """Each seed draws its own bias, so that different runs go to different places."""
        if kind not in self._weights:
            rng = self.around.rng
            drawn = rng.choice((0.05, 0.3, 1.0, 4.0)) if rng is not None else 1.0
            fault = kind in FAULT_KINDS
            self._weights[kind] = getattr(self.setup.faults, kind) * (drawn > 0.1) if fault else drawn
        return self._weights[kind]

    def _do(self, action: Action) -> None:
        self.around.note(action.kind)
        action.run()
        self._check()

    def _step(self, rules: Rules, node: Node, event: Event) -> Step:
        self.num_steps += 1
        result = self._stepper(rules, node, event)
        if self.setup.checked:
            self._judge(properties.Taken(node, event, result))
        return result

    def _judge(self, taken: properties.Taken) -> None:
        for decision in taken.step.decisions:
            key = (decision.guard, decision.place, decision.answer)
            self.decisions[key] = self.decisions.get(key, 0) + 1
        if taken.step.node is taken.before and not taken.step.commands:
            return
        after, asked = taken.step.node, relevant_to(type(taken.step.node), kinds_of(taken))
        self.reached.update(p.name for p in asked.sometimes if p.holds(taken))
        for each in asked.nodes:
            if not each.holds(after):
                self.broken.setdefault(each.name, self.num_steps)
        for about in asked.steps:
            if not about.holds(taken):
                self.broken.setdefault(about.name, self.num_steps)

    def _check(self, *, at_rest: bool = False) -> None:
        if self.setup.checked:
            for name in properties.broken_in(self, at_rest=at_rest):
                self.broken.setdefault(name, self.num_steps)

    # ---- what can happen ----

    def _work(self) -> Iterator[Action]:
        """Everything that goes right, the most urgent first."""
        cluster = self.cluster
        for number in range(min(WINDOW, len(cluster.network.flights))):
            yield Action("deliver", lambda n=number: cluster.deliver(cluster.network.take(n)))  # type: ignore[misc]
        for decode in cluster.decodes:
            if decode.tokens:
                yield Action("token", lambda d=decode: cluster.deliver_token(d))  # type: ignore[misc]
        if not cluster.start_is_fenced:
            yield Action("fence-start", cluster.fence_start)
        elif self.waiting and len(cluster.gateway.open) < self.setup.concurrency:
            yield Action("submit", self._submit)
        if cluster.gateway.leaving:
            yield Action("leave", lambda: cluster.gateway.leave(cluster.gateway.leaving.pop(0)))
        yield from cluster.landing.actions(cluster.target_of)
        for process in cluster.processes:
            yield from process.actions()
        if cluster.dying:
            yield Action("reap", cluster.reap)

    def _submit(self) -> None:
        self.cluster.gateway.submit(self.waiting.pop(0))

    def _finish(self, request: RequestId, reason: EndReason) -> None:
        self.ends[request].append(reason)
        delivered = self.cluster.gateway.delivered.get(request, 0)
        self.answers[request] = Answer(self._requests[request], reason, delivered)

    # ---- coming to rest ----

    def _rest(self) -> None:
        """Let everything go right, say again what is unanswered, repair what only a supervisor can, let time pass."""
        self.around.calm = True
        for _ in range(ROUNDS_MAX):
            self._drain()
            before = [(node.handoffs, getattr(node, "pool", None)) for node in self.nodes]
            self._say_again()
            self._drain()
            unchanged = before == [(node.handoffs, getattr(node, "pool", None)) for node in self.nodes]
            if unchanged and not self._repair() and not self._let_time_pass():
                return

    def _drain(self) -> None:
        for _ in range(ACTIONS_MAX):
            if not self.advance():
                return

    def _say_again(self) -> None:
        self.cluster.move_floors()
        for process in self.cluster.processes:
            for attempt in list(process.loop.node.handoffs):
                process.loop.feed(Resend(attempt))

    def _repair(self) -> bool:
        """Do what a supervisor does about writers that hang and pages that only a fence returns."""
        cluster = self.cluster
        hanging = any(write.stalled for write in self.around.writes)
        if hanging or any(decode.loop.node.pool.quarantined for decode in cluster.decodes):
            if self.setup.fence is Fence.NEW_SESSION:
                for prefill in cluster.prefills:
                    for attempt, batch in list(prefill.batches):
                        prefill.give_up_batch(attempt, batch)
                for number in range(len(cluster.decodes)):
                    cluster.rebuild_session(number)
            else:
                for number in range(len(cluster.prefills)):
                    cluster.kill_prefill(number, reaped=True)
            return True
        unsure = [prefill for prefill in cluster.prefills if prefill.needs_rebuild]
        for prefill in unsure:
            prefill.rebuild_engine()
        return bool(unsure)

    def _let_time_pass(self) -> bool:
        passed = False
        for process in self.cluster.processes:
            for attempt in sorted(process.timers):
                process.deadline(attempt)
                passed = True
        return passed


def _runs(setup: Setup, request: SimRequest) -> bool:
    pages = setup.capacity.num_pages(request.num_tokens)
    fit = all(sum_.holds for sum_ in fits(setup.capacity, request.num_tokens, request.max_tokens))
    return fit and (setup.engine_pages is None or pages <= setup.engine_pages)
