"""The prefill worker: computes prompts in chunks, seals pages as they fill and writes them into decode's pool.

Read ``protocol/prefill.py`` first: it decides; this carries out.
"""

import os
from collections.abc import Iterable
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import StampMismatch
from kvfence.core.ids import AttemptId, PassId
from kvfence.core.invariant import InvariantBroken
from kvfence.core.request import Past, SamplingParams, past_of, without_content
from kvfence.core.tags import PageStamp, PageTag
from kvfence.kv.seal import handoff_digest, pack_heads, read_stamp, seal_page, write_head
from kvfence.kv.storage import MemoryFile
from kvfence.models.executor import Executor, PassRow
from kvfence.models.sampler import Sampler
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Command, Move, Post, Send, Share, StartPrefill, Stop
from kvfence.protocol.events import Event, PagesSealed, PassBegan, PassEnded, Received
from kvfence.protocol.lots import new_pool
from kvfence.protocol.messages import Commit, Dispatch, EndReason, Envelope, Sent
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.transitions import PrefillPhase
from kvfence.runtime.lifeline import Beat, Begin, Lifeline, MeetPeer, Order, PeerDied
from kvfence.runtime.mooncake_writer import MooncakeWriter
from kvfence.runtime.page_writer import PageWriter, SharedMemoryWriter
from kvfence.runtime.prefixes import Prefixes
from kvfence.runtime.process import run_worker
from kvfence.runtime.samplers import is_ready
from kvfence.runtime.scheduler import Chunk, next_chunks
from kvfence.runtime.sessions import uses_mooncake
from kvfence.runtime.worker import Worker
from kvfence.wire.frames import FirstToken, Frame, Prompt, SessionOpened
from kvfence.wire.shm import Progress

UNANSWERED = (PrefillPhase.SENT, PrefillPhase.FAILED)


class Job(Struct):
    """One prompt at work. ``token_ids`` is emptied once computed; none of it is ever logged.

    Units: num_computed, num_cached (found in shared pages) in tokens; stamps: one for each sealed page.
    """

    token_ids: list[int]
    sampling: SamplingParams
    num_generated: int
    past: Past = Past()
    sampler: Sampler | None = None
    serial: int = 0
    pages: tuple[int, ...] = ()
    num_tokens: int = 0
    num_computed: int = 0
    num_cached: int = 0
    stamps: list[PageStamp] = []
    first_token: int | None = None

    __repr__ = without_content


class PrefillWorker(Worker[PrefillNode]):
    """Prefill's process."""

    on_progress: Progress | None = None
    """Called by every page write after each part of it: how tests stop, tear or corrupt a write. None in production."""

    def __init__(self, begin: Begin, lifeline: "Lifeline[Order]", executor: Executor, memory: MemoryFile) -> None:
        super().__init__(begin, lifeline, executor, memory)
        self.jobs: dict[AttemptId, Job] = {}
        self.prefixes = Prefixes(self.layout.page_size)
        self.writer: PageWriter[Any] = self._make_writer()
        self.last_pass = PassId(0)
        self.passing: tuple[AttemptId, ...] = ()

    def make_node(self, capacity: Capacity) -> PrefillNode:
        """A node whose pool nobody else can write, so that all of it is free."""
        limits = self.begin.settings.limits
        return PrefillNode(
            Lives(self.incarnation),
            capacity,
            self.layout.fingerprint,
            new_pool(self.pool.num_pages),
            batch_pages_max=limits.batch_pages_max,
            cached_lots_max=limits.cached_lots_max if self.begin.settings.pool.prefix_reuse else 0,
        )

    def _make_writer(self) -> PageWriter[Any]:
        if uses_mooncake(self.begin.settings):
            return MooncakeWriter(self.begin, self.layout, self.memory, self.report)
        return SharedMemoryWriter(self.begin, self.layout, self.memory, self.report, self.on_progress)

    def start(self, capacity: Capacity) -> None:
        """Start, and write what will be posted."""
        super().start(capacity)
        self.tasks.create_task(self.writer.run())

    def report(self, event: Event) -> None:
        """Take what the writer observed."""
        self.loop.feed(event)
        self.wake.set()

    def meet(self, order: MeetPeer, fd: int | None) -> None:
        """Reach a decode worker's pool before its first page is granted to us."""
        taken = self.writer.meet(order, fd)
        super().meet(order, None if taken else fd)

    def lose(self, order: PeerDied) -> None:
        """Let a dead decode worker's pool go."""
        super().lose(order)
        self.writer.lose(order.peer)

    def hear(self, frame: Frame) -> None:
        """Take the session that a decode worker announces."""
        if isinstance(frame.payload, SessionOpened):
            self.writer.hear(frame.sender, frame.payload)

    def upkeep(self) -> None:
        """Give the writer its turn."""
        self.writer.upkeep(num_quarantined=self.loop.node.pool.num_quarantined)

    def receive(self, frame: Frame, envelope: Envelope) -> Event:
        """Keep the prompt of a new dispatch and look for its first pages; refuse one that cannot be run at intake."""
        message = envelope.message
        if isinstance(message, Commit):
            return Received(envelope, num_known=self._num_known(message.attempt))
        if not isinstance(message, Dispatch):
            return Received(envelope)
        if message.attempt in self.loop.node.handoffs:
            return Received(envelope)
        prompt = frame.payload
        sound = isinstance(prompt, Prompt) and len(prompt.token_ids) == message.num_tokens
        if not isinstance(prompt, Prompt) or not sound or not self._in_vocabulary(prompt.token_ids):
            return Received(envelope, EndReason.REFUSED_AT_INTAKE)
        past = past_of(prompt.sampling, prompt.token_ids, prompt.num_generated)
        sampler = self.samplers.make(prompt.sampling, past)
        self.jobs[message.attempt] = Job(prompt.token_ids, prompt.sampling, prompt.num_generated, past, sampler)
        salt = message.salt if self.loop.node.cached_lots_max else ""
        return Received(envelope, found=self.prefixes.find(message.attempt, salt, prompt.token_ids))

    def _num_known(self, attempt: AttemptId) -> int:
        handoff = self.loop.node.handoffs.get(attempt)
        if handoff is None or handoff.lot is None:
            return 0
        return self.prefixes.num_known(attempt, handoff.num_shared, handoff.lot)

    def _in_vocabulary(self, token_ids: list[int]) -> bool:
        return bool(token_ids) and min(token_ids) >= 0 and max(token_ids) < self.executor.vocab_size

    def execute(self, command: Command) -> Iterable[Event] | None:
        """Carry out any command."""
        if isinstance(command, Move):
            self.prefixes.move(command)
        return super().execute(command)

    def carry_out(self, command: Command) -> Iterable[Event] | None:
        """Start, keep, send, post or stop."""
        match command:
            case Send(message=Sent(attempt=attempt)):
                self.post(self.frame(command, self._first_of(attempt)), command.to)
            case Send():
                self.post(self.frame(command), command.to)
            case StartPrefill():
                self._begin_job(self.jobs[command.attempt], command)
                self.wake.set()
            case Share():
                self.prefixes.share(command)
            case Post():
                self.writer.post(command)
            case Stop(attempt=attempt):
                self._forget(attempt)
        return None

    def _first_of(self, attempt: AttemptId) -> FirstToken:
        job = self.jobs[attempt]
        if job.first_token is None:
            raise InvariantBroken("a computed prompt has its first token")
        first = FirstToken(job.first_token, job.sampling, job.num_generated, num_cached=job.num_cached)
        if job.sampler is None:
            return first
        return replace(first, past=job.past, logprob=job.sampler.logprob, complete=job.sampler.complete)

    def _begin_job(self, job: Job, command: StartPrefill) -> None:
        """Own pages get their heads; shared ones have theirs, which every pass compares like all others."""
        for lot in command.shared:
            self.table.add(command.attempt, lot.pages, pack_heads(self.incarnation, lot.serial, lot.pages))
            job.stamps += [read_stamp(self.pool, page) for page in lot.pages]
        heads = pack_heads(self.incarnation, command.serial, command.pages)
        write_head(self.pool, command.pages, heads)
        self.table.add(command.attempt, command.pages, heads)
        job.serial, job.num_tokens = command.serial, command.num_tokens
        job.pages = (*chain.from_iterable(lot.pages for lot in command.shared), *command.pages)
        job.num_computed = job.num_cached = self.prefixes.start(command)
        job.token_ids = job.token_ids[: command.num_tokens]

    def _forget(self, attempt: AttemptId) -> None:
        self.jobs.pop(attempt, None)
        self.prefixes.drop(attempt)
        if attempt not in self.passing:  # until its pass has ended, its pages are compared
            self.table.drop(attempt)

    async def work(self) -> None:
        """Compute chunks while there are any."""
        while True:
            self._sweep()
            chunks = next_chunks(self._prompts(), self.begin.settings.limits.chunk_tokens_max)
            if chunks:
                await self._run(chunks)
            else:
                self.wake.clear()
                await self.wake.wait()

    def _prompts(self) -> list[tuple[AttemptId, int, int]]:
        handoffs = self.loop.node.handoffs
        return [
            (attempt, job.num_computed, job.num_tokens)
            for attempt, job in self.jobs.items()
            if job.pages and job.num_computed < job.num_tokens and handoffs[attempt].phase is PrefillPhase.RUNNING
            if is_ready(job.sampler)
        ]

    def _sweep(self) -> None:
        """Forget jobs whose hand-off is over."""
        handoffs = self.loop.node.handoffs
        over = [a for a in self.jobs if a not in handoffs or handoffs[a].phase is PrefillPhase.CLOSED]
        for attempt in over:
            self._forget(attempt)

    async def _run(self, chunks: list[Chunk]) -> None:
        """One pass: heads compared before and after it, then pages sealed and their posting begun."""
        self.last_pass = PassId(self.last_pass + 1)
        self.passing = attempts = tuple(chunk.attempt for chunk in chunks)
        self.loop.feed(PassBegan(self.last_pass, attempts))
        rows = [self._row(chunk) for chunk in chunks]
        bad = self._bad_pages()
        tokens = await self._compute(rows)
        bad.update(self._bad_pages())
        self.passing = ()
        for attempt in attempts:
            if attempt not in self.jobs:
                self.table.drop(attempt)
        failed = attempts if tokens is None else _without_token(chunks, tokens)
        for chunk, token in zip(chunks, tokens or (), strict=False):
            if chunk.attempt in self.jobs and chunk.attempt not in bad and chunk.attempt not in failed:
                self._seal(chunk, token, bad)
        finished = tuple((chunk.attempt, EndReason.STOP) for chunk in chunks if chunk.last)
        mismatched = tuple((attempt, tuple(bad[attempt])) for attempt in attempts if attempt in bad)
        self.loop.feed(PassEnded(self.last_pass, mismatched, finished, failed))
        self.counters["passes"] += 1
        for attempt in attempts:
            self._report_sealed(attempt)

    def _row(self, chunk: Chunk) -> PassRow:
        job = self.jobs[chunk.attempt]
        num_pages = self.layout.num_pages(chunk.end)
        return PassRow(
            job.token_ids[chunk.start : chunk.end],
            chunk.start,
            job.pages[:num_pages],
            job.sampling if chunk.last else None,
            job.num_generated,
            job.sampler if chunk.last else None,
        )

    def _seal(self, chunk: Chunk, token: int | None, bad: dict[AttemptId, list[int]]) -> None:
        """Seal the pages this chunk filled, the last one zeroed behind its tokens; one that is another's is bad."""
        job = self.jobs[chunk.attempt]
        job.num_computed = chunk.end
        page_size = self.layout.page_size
        num_full = self.layout.num_pages(chunk.end) if chunk.last else chunk.end // page_size
        zero = self.begin.rules.enforces("zero-tail", "prefill")
        for index in range(len(job.stamps), num_full):
            num_tokens = min(page_size, chunk.end - index * page_size)
            tag = PageTag(self.incarnation, job.serial, job.pages[index])
            try:
                job.stamps.append(seal_page(self.pool, tag, num_tokens, zero))
            except StampMismatch:
                bad.setdefault(chunk.attempt, []).append(tag.page)
                return
        if chunk.last:
            job.first_token, job.token_ids = token, []

    def _report_sealed(self, attempt: AttemptId) -> None:
        """Tell the node of pages sealed since the last report, where the attempt still runs."""
        job, handoff = self.jobs.get(attempt), self.loop.node.handoffs.get(attempt)
        if job is None or handoff is None or handoff.phase is not PrefillPhase.RUNNING:
            return
        if len(job.stamps) > handoff.num_sealed:
            zeroed = self.begin.rules.enforces("zero-tail", "prefill")
            self.loop.feed(PagesSealed(attempt, len(job.stamps), zeroed, handoff_digest(job.stamps)))

    def _beat(self) -> Beat:
        """Of sealed pages say which are cached, held by nobody; and how much of all prompts was found."""
        beat, num_cached = super()._beat(), self.loop.node.pool.num_cached
        states = {**beat.states, "sealed": beat.states.get("sealed", 0) - num_cached, "cached": num_cached}
        return replace(beat, states=states, prefixes=self.prefixes.counts)

    def unanswered(self) -> Iterable[AttemptId]:
        """Sent and Failed wait for decode's word."""
        return [a for a, handoff in self.loop.node.handoffs.items() if handoff.phase in UNANSWERED]


def _without_token(chunks: list[Chunk], tokens: list[int | None]) -> tuple[AttemptId, ...]:
    """Prompts whose first token could not be chosen."""
    return tuple(chunk.attempt for chunk, token in zip(chunks, tokens, strict=True) if chunk.last and token is None)


def main() -> None:
    """Run a prefill worker on the lifeline named on the command line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_worker(PrefillWorker)


if __name__ == "__main__":
    main()
