"""What a prefill worker does, with symbols for bytes: computes chunks, seals pages, posts them."""

import hashlib
from collections.abc import Iterator

from msgspec import Struct

from kvfence.core.ids import AttemptId, BatchId, PassId, SessionId
from kvfence.core.tags import PageStamp, PageTag
from kvfence.driver.loop import Stepper
from kvfence.protocol.commands import Command, Post, StartPrefill, Stop
from kvfence.protocol.events import BatchEnded, PagesSealed, PassBegan, PassEnded, SessionRebuilt
from kvfence.protocol.messages import EndReason
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.transitions import PrefillPhase
from kvfence.sim.memory import Cell, Memory, PageWrite, Target
from kvfence.sim.oracle import PageRead
from kvfence.sim.process import Action, Process, SendTo, Surroundings


class Job(Struct):
    """One prompt at work. Units: num_computed, num_sealed in pages."""

    serial: int
    pages: tuple[int, ...]
    num_tokens: int
    num_computed: int = 0
    num_sealed: int = 0
    stamps: list[PageStamp] = []


class ChunkPass(Struct):
    """A pass under way: the pages each prompt's chunk writes, and the heads that were wrong before it."""

    chunks: dict[AttemptId, tuple[Job, int, int]]
    bad: dict[AttemptId, tuple[int, ...]]


class Prefill(Process[PrefillNode]):
    """Prefill's process."""

    role = "prefill"

    def __init__(self, around: Surroundings, node: PrefillNode, send: SendTo, stepper: Stepper) -> None:
        super().__init__(around, node, send, stepper)
        self.memory = Memory(node.pool.num_pages)
        self.jobs: dict[AttemptId, Job] = {}
        self.passes: dict[PassId, ChunkPass] = {}
        self.batches: dict[tuple[AttemptId, BatchId], list[PageWrite]] = {}
        self._num_sessions = 0
        self.loop.rewrites = list(around.setup.rewrites)

    def carry_out(self, command: Command) -> None:
        """Start, post or stop."""
        match command:
            case StartPrefill(attempt=attempt, serial=serial, pages=pages, num_tokens=num_tokens):
                self.jobs[attempt] = Job(serial, pages, num_tokens)
                for page in pages:
                    self.memory[page].head = PageTag(self.incarnation, serial, page)
            case Post():
                self._post(command)
            case Stop(attempt=attempt):
                self.jobs.pop(attempt, None)

    def actions(self) -> Iterator[Action]:
        """End batches and passes, seal pages, begin passes."""
        for (attempt, batch), writes in list(self.batches.items()):
            if all(write.ended for write in writes):
                yield Action("batch-end", lambda a=attempt, b=batch: self.end_batch(a, b))  # type: ignore[misc]
        for attempt, job in list(self.jobs.items()):
            if job.num_computed > job.num_sealed and self._is_running(attempt):
                yield Action("seal", lambda a=attempt: self.seal(a))  # type: ignore[misc]
        for pass_id in list(self.passes):
            yield Action("prefill-end", lambda p=pass_id: self.end_pass(p))  # type: ignore[misc]
        if self._ready():
            yield Action("prefill-begin", self.begin_pass)

    # ---- passes

    def _is_running(self, attempt: AttemptId) -> bool:
        handoff = self.loop.node.handoffs.get(attempt)
        return handoff is not None and handoff.phase is PrefillPhase.RUNNING

    def _ready(self) -> list[AttemptId]:
        handoffs = self.loop.node.handoffs
        return [
            attempt
            for attempt, job in self.jobs.items()
            if self._is_running(attempt) and not handoffs[attempt].passes and job.num_computed < len(job.pages)
        ]

    def begin_pass(self) -> None:
        """Compare heads and begin a chunk of some prompts."""
        attempts = self.around.some(self._ready())
        pass_id = PassId(self.loop.node.last_pass + 1)
        chunks = {}
        for attempt in attempts:
            job = self.jobs[attempt]
            end = min(len(job.pages), job.num_computed + self.around.setup.chunk_pages)
            chunks[attempt] = (job, job.num_computed, end)
        self.passes[pass_id] = ChunkPass(chunks, {a: self._bad(job) for a, (job, _, _) in chunks.items()})
        self.loop.feed(PassBegan(pass_id, tuple(attempts)))

    def _bad(self, job: Job) -> tuple[int, ...]:
        tags = ((page, PageTag(self.incarnation, job.serial, page)) for page in job.pages)
        return tuple(page for page, tag in tags if self.memory[page].head != tag)

    def end_pass(self, pass_id: PassId) -> None:
        """Write the chunks, compare heads again and report."""
        chunk_pass = self.passes.pop(pass_id)
        finished = []
        bad = {}
        for attempt, (job, start, end) in chunk_pass.chunks.items():
            self._compute(attempt, job, start, end)
            wrong = (*chunk_pass.bad[attempt], *self._bad(job))
            if wrong:
                bad[attempt] = wrong
            if job.num_computed == len(job.pages):
                finished.append((attempt, EndReason.STOP))
                self.around.first_reads[attempt] = self._reads(job)
        self.loop.feed(PassEnded(pass_id, tuple(bad.items()), tuple(finished)))

    def _compute(self, attempt: AttemptId, job: Job, start: int, end: int) -> None:
        """Write a chunk's pages, also those of a prompt that was given up while the pass ran."""
        page_size = self.loop.node.capacity.page_size
        for position in range(start, end):
            page = job.pages[position]
            self.note_stray(page, job.serial)
            whole = (position + 1) * page_size <= job.num_tokens
            written = self.around.written(attempt, position, self.loop.node.layout)
            self.memory[page].fill(written, whole=whole)
        job.num_computed = end

    def _reads(self, job: Job) -> tuple[PageRead, ...]:
        cells = ((i, page, self.memory[page]) for i, page in enumerate(job.pages))
        return tuple(PageRead(page, i, tuple(cell.body)) for i, page, cell in cells)

    def seal(self, attempt: AttemptId) -> None:
        """Zero the unused slots of the computed pages, stamp them and report."""
        job = self.jobs[attempt]
        page_size = self.loop.node.capacity.page_size
        zeroed = True
        for position in range(job.num_sealed, job.num_computed):
            page = job.pages[position]
            cell = self.memory[page]
            if not self.around.setup.faults.unzeroed:
                cell.slack = None
            zeroed = zeroed and cell.slack is None
            num_tokens = min(page_size, job.num_tokens - position * page_size)
            cell.tail = PageStamp(PageTag(self.incarnation, job.serial, page), num_tokens, cell.digest())
            job.stamps.append(cell.tail)
        job.num_sealed = job.num_computed
        self.loop.feed(PagesSealed(attempt, job.num_sealed, zeroed, digest_of(job.stamps)))

    # ---- batches

    def _post(self, post: Post) -> None:
        writes = []
        handoff = self.loop.node.handoffs[post.attempt]
        grant_serial = handoff.grant.serial if handoff.grant is not None else 0
        for source, page in zip(post.source, post.destination, strict=True):
            target = Target(self.incarnation, post.decode, post.session, grant_serial, page)
            writes.append(PageWrite(post.attempt, post.batch, target, self.memory[source]))
            slack = self.memory[source].slack
            if slack is not None and slack.request != self.around.asked[post.attempt].id:
                self.around.stale_slots.append(f"source page {source} of {post.attempt}")
        self.batches[(post.attempt, post.batch)] = writes
        self.around.writes += writes

    def end_batch(self, attempt: AttemptId, batch: BatchId) -> None:
        """Report a batch whose writes have all ended."""
        writes = self.batches.pop((attempt, batch))
        success = not any(write.refused for write in writes)
        self.loop.feed(BatchEnded(attempt, batch, success, source_quiet=True))

    def give_up_batch(self, attempt: AttemptId, batch: BatchId) -> None:
        """Report a time-out: what has not landed yet may land later, and may read its source later."""
        self.batches.pop((attempt, batch))
        self.loop.feed(BatchEnded(attempt, batch, success=False, source_quiet=False))

    def rebuild_engine(self) -> None:
        """Destroy and rebuild the own engine: what it had not read yet, it has read by now."""
        for write in self.around.writes:
            if write.target.writer == self.incarnation:
                write.source = frozen(write.source)
        for attempt, batch in list(self.batches):
            self.batches.pop((attempt, batch))
            self.loop.feed(BatchEnded(attempt, batch, success=False, source_quiet=True))
        self._num_sessions += 1
        self.loop.feed(SessionRebuilt(SessionId(f"{self.incarnation}/{self._num_sessions}")))

    @property
    def needs_rebuild(self) -> bool:
        """Are source pages waiting for the own engine's end?"""
        return bool(self.loop.node.pool.quarantined)


def frozen(cell: Cell) -> Cell:
    """Give a copy of a page as it is now."""
    copy = Cell()
    copy.head, copy.body, copy.slack, copy.tail = cell.head, list(cell.body), cell.slack, cell.tail
    return copy


def digest_of(stamps: list[PageStamp]) -> str:
    """Give one digest over the ordered stamps."""
    return hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest()
