"""What goes wrong in a run, and the chores that drivers do meanwhile: each an action with the weight of its switch."""

from collections.abc import Callable, Iterator
from itertools import chain

from msgspec.structs import replace

from kvfence.protocol.events import Resend
from kvfence.protocol.messages import Sent
from kvfence.protocol.transitions import DecodePhase, Fence
from kvfence.sim.cluster import Cluster
from kvfence.sim.faults import Faults
from kvfence.sim.process import Action, Surroundings

FAULT_KINDS = frozenset(Faults.__struct_fields__)

DEATHS_MAX = 4
"""How many processes die in one run."""


class Mishaps:
    """Gives what can go wrong next."""

    def __init__(self, around: Surroundings, cluster: Cluster) -> None:
        self.around = around
        self.setup = around.setup
        self.cluster = cluster
        self._num_deaths = 0

    def actions(self) -> Iterator[Action]:
        """Everything that can go wrong now and has a weight."""
        for action in chain(self._chores(), self._network_faults(), self._people(), self._process_faults()):
            if getattr(self.setup.faults, action.kind) > 0:
                yield action

    def _network_faults(self) -> Iterator[Action]:
        network = self.cluster.network
        if network.flights:
            yield Action("lose", lambda: _ignore(network.take(self._any(len(network.flights)))))
            yield Action("duplicate", self._repeat)
            yield Action("confuse", self._confuse)
        posted = [(prefill, *each) for prefill in self.cluster.prefills for each in prefill.batches.items()]
        for prefill, (attempt, batch), writes in posted:
            if not all(write.ended for write in writes) and self.setup.fence is not Fence.AT_RECEIPT:
                run = lambda p=prefill, a=attempt, b=batch: p.give_up_batch(a, b)  # noqa: E731
                yield Action("stall", run)

    def _repeat(self) -> None:
        network = self.cluster.network
        self.cluster.deliver(network.take(self._any(len(network.flights)), keep=True))
        decode = next((decode for decode in self.cluster.decodes if decode.tokens), None)
        if decode is not None:
            self.cluster.deliver_token(decode, keep=True)

    def _confuse(self) -> None:
        """A completion is taken for that of another open attempt."""
        flight = next((f for f in self.cluster.network.flights if isinstance(f.envelope.message, Sent)), None)
        handoffs = (h for decode in self.cluster.decodes for h in decode.loop.node.handoffs.values())
        others = [h.attempt for h in handoffs if h.phase is DecodePhase.GRANTED]
        if flight is not None and others:
            attempt = others[self._any(len(others))]
            message = replace(flight.envelope.message, attempt=attempt)
            self.cluster.deliver(replace(flight, envelope=replace(flight.envelope, message=message)))

    def _people(self) -> Iterator[Action]:
        gateway, faults = self.cluster.gateway, self.setup.faults
        for request in list(gateway.open) if faults.cancel else ():
            yield Action("cancel", lambda r=request: gateway.leave(r))  # type: ignore[misc]
        for process in self.cluster.processes if faults.deadline else ():
            for attempt in sorted(process.timers):
                yield Action("deadline", lambda p=process, a=attempt: p.deadline(a))  # type: ignore[misc]

    def _process_faults(self) -> Iterator[Action]:
        cluster = self.cluster
        workers = cluster.workers
        yield Action("silence", lambda: cluster.fall_silent(workers[self._any(len(workers))]))
        if self._num_deaths >= DEATHS_MAX:
            return
        prefill = cluster.prefills[cluster.any_of(cluster.prefills)]
        if held := list(prefill.loop.node.pool.held.values()):
            most = max(len(entry.holders) for entry in held)
            pages = [page for entry in held if len(entry.holders) == most for page in entry.lot.pages]
            yield Action("spoil", lambda: prefill.spoil(pages[self._any(len(pages))]))
        kill_prefill = lambda: cluster.kill_prefill(cluster.any_of(cluster.prefills), reaped=not self._late())  # noqa: E731
        yield Action("kill_prefill", lambda: self._dies(kill_prefill))
        yield Action("kill_decode", lambda: self._dies(lambda: cluster.kill_decode(cluster.any_of(cluster.decodes))))
        yield Action("kill_gateway", lambda: self._dies(cluster.kill_gateway))
        if self.setup.fence is Fence.NEW_SESSION:
            rebuild = lambda: cluster.rebuild_session(cluster.any_of(cluster.decodes))  # noqa: E731
            yield Action("rebuild_session", lambda: self._dies(rebuild))

    def _late(self) -> bool:
        return self.setup.faults.reap_late and self._any(2) == 0

    def _dies(self, die: Callable[[], None]) -> None:
        self._num_deaths += 1
        die()

    def _any(self, number: int) -> int:
        return self.around.rng.randrange(number) if self.around.rng is not None else 0

    def _chores(self) -> Iterator[Action]:
        """What drivers do from time to time: tell the floor, say again what is unanswered."""
        if not self.setup.faults.chores:
            return
        yield Action("chores", self.cluster.move_floors)
        for process in self.cluster.processes:
            attempts = list(process.loop.node.handoffs)
            if attempts:
                attempt = attempts[self._any(len(attempts))]
                yield Action("chores", lambda p=process, a=attempt: p.loop.feed(Resend(a)))  # type: ignore[misc]


def _ignore(_: object) -> None:
    return None
