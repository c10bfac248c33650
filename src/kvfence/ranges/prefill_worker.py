"""A practice server's prefill worker: production's, with what its orders say goes wrong.

The faults are in the engine, not in the guards: the same program runs with every rule set. Read next: ``writers.py``.
"""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import AttemptId
from kvfence.driver.mutants import lose_the_tail, placeholder_on_refusal
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Command, Post, Send, StartPrefill, Stop
from kvfence.protocol.events import Event
from kvfence.protocol.messages import Commit, EndReason, Envelope, Failed
from kvfence.ranges.loading import load, practice_views
from kvfence.ranges.orders import read_orders
from kvfence.ranges.pieces import SPACE
from kvfence.ranges.writers import CorruptingWriter, FaultyWriter, LateWriter, TearingWriter, dice_of
from kvfence.runtime.page_writer import PageWriter
from kvfence.runtime.prefill_worker import Job, PrefillWorker
from kvfence.runtime.process import run_worker
from kvfence.wire.frames import Frame

REMEMBERED = 16
"""How many hand-offs a confused page table may mix up."""


class Former(Struct, frozen=True):
    """Pages that an earlier hand-off was about. ``salt``: whose it was."""

    attempt: AttemptId
    salt: str
    pages: tuple[int, ...]


class RangePrefill(PrefillWorker):
    """Prefill's process. Holds: the pages of the last few hand-offs, and since when a refusal is held back."""

    def __init__(self, *args: Any) -> None:
        self.orders = read_orders()
        self.dice = dice_of(self.orders)
        self.sources: deque[Former] = deque(maxlen=REMEMBERED)
        self.destinations: deque[Former] = deque(maxlen=REMEMBERED)
        self.refusing: dict[AttemptId, float] = {}
        super().__init__(*args)

    def views(self) -> list[Any]:
        """Views of the model that runs."""
        return practice_views(self.pool, self.layout) or super().views()

    def _make_writer(self) -> PageWriter[Any]:
        plain = (self.begin, self.layout, self.memory, self.report)
        kinds: dict[str, type[FaultyWriter]] = {"torn": TearingWriter, "corrupt": CorruptingWriter}
        if self.orders.fault == "late":
            start, held_s = (lambda task: self.tasks.create_task(task)), self.orders.held_s
            return LateWriter(*plain, dice=self.dice, held_s=held_s, start=start)
        kind = kinds.get(self.orders.fault)
        return super()._make_writer() if kind is None else kind(*plain, dice=self.dice)

    def start(self, capacity: Capacity) -> None:
        """Start with the mistake in place."""
        super().start(capacity)
        if self.orders.fault == "placeholder":
            self.loop.rewrites.append(placeholder_on_refusal(capacity))
        if self.orders.fault == "truncated":
            self.loop.rewrites.append(lose_the_tail(capacity))

    def _begin_job(self, job: Job, command: StartPrefill) -> None:
        if command.num_tokens == 1 < len(job.token_ids):
            job.token_ids = [SPACE if self.orders.practice else 0]
        super()._begin_job(job, command)

    def receive(self, frame: Frame, envelope: Envelope) -> Event:
        """Note what decode adopted."""
        if isinstance(envelope.message, Commit):
            self._note_adopted(envelope.message.attempt)
        return super().receive(frame, envelope)

    def _note_adopted(self, attempt: AttemptId) -> None:
        handoff = self.loop.node.handoffs.get(attempt)
        if handoff is None or handoff.grant is None:
            return
        self.destinations.append(Former(attempt, handoff.salt, handoff.grant.pages))
        self.sources.append(Former(attempt, handoff.salt, handoff.pages))
        if isinstance(self.writer, LateWriter):
            self.writer.adopted(attempt, handoff.grant.pages)

    def carry_out(self, command: Command) -> Iterable[Event] | None:
        """Post what is posted about the wrong pages, hold a refusal back, or do as every prefill worker."""
        match command:
            case Post():
                command = self._confuse(command)
            case Send(message=Failed(attempt=attempt, reason=EndReason.DOES_NOT_FIT)) if self._holds_back(attempt):
                return None
            case Stop(attempt=attempt) if isinstance(self.writer, LateWriter):
                self.writer.give_up(attempt)
        return super().carry_out(command)

    def _confuse(self, post: Post) -> Post:
        """Take another tenant's pages for the ones that are meant: those to read, or those to write."""
        if self.orders.fault not in ("stale-source", "misdirected") or not self.dice.fall(len(post.source)):
            return post
        handoff = self.loop.node.handoffs[post.attempt]
        if self.orders.fault == "stale-source":
            return replace(post, source=_mixed(post.source, _others(handoff.salt, self.sources)))
        return replace(post, destination=_mixed(post.destination, _others(handoff.salt, self.destinations)))

    def _holds_back(self, attempt: AttemptId) -> bool:
        """Is this refusal still on its way? It is said again and again, until decode has heard it."""
        if self.orders.fault != "slow":
            return False
        handoffs = self.loop.node.handoffs
        self.refusing = {
            each: since_s for each, since_s in self.refusing.items() if each in handoffs or each == attempt
        }
        since_s = self.refusing.setdefault(attempt, time.monotonic())
        return time.monotonic() < since_s + self.orders.refusal_after_s


def _others(salt: str, formers: Iterable[Former]) -> tuple[int, ...]:
    """Give the pages of the last hand-off of another tenant, else of the last one; none where there was none."""
    latest_first = [*formers][::-1]
    return next((each.pages for each in [*(f for f in latest_first if f.salt != salt), *latest_first]), ())


def _mixed(pages: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """Take the others as far as they go, each page once."""
    taken = [page for page in others if page not in pages][: len(pages)]
    return (*taken, *pages[len(taken) :])


if __name__ == "__main__":
    run_worker(RangePrefill, load)
