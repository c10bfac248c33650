"""What a prefill worker does, with symbols for bytes: computes chunks, seals pages, posts them."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from kvfence.core.ids import FORMER_LIFE, AttemptId, BatchId, PassId, SessionId
from kvfence.core.tags import PageTag
from kvfence.driver.loop import Stepper
from kvfence.driver.mutants import UnsaltedIndex
from kvfence.driver.prefix import PrefixIndex
from kvfence.protocol.commands import Command, Move, Post, Share, StartPrefill, Stop
from kvfence.protocol.events import BatchEnded, Event, PagesSealed, PassBegan, PassEnded, Received, SessionRebuilt
from kvfence.protocol.lots import Lot
from kvfence.protocol.messages import Commit, Dispatch, EndReason, Envelope
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.transitions import PageMove, PrefillPhase
from kvfence.sim.memory import CORRUPT, HALVES, PageWrite, Target
from kvfence.sim.oracle import PageRead
from kvfence.sim.process import Action, Process, SendTo, Surroundings


class Job(Struct):
    """One prompt at work.

    Shapes: tags: one for each page, shared ones first. Units: num_computed, num_sealed in pages.
    ``reads``: every page that a pass of it read, as it was then.
    """

    tags: tuple[PageTag, ...]
    num_tokens: int
    num_computed: int
    num_sealed: int
    reads: list[PageRead] = []


class ChunkPass(Struct):
    """A pass under way: the pages each prompt's chunk writes, and the heads that were wrong before it."""

    chunks: dict[AttemptId, tuple[Job, int, int]]
    bad: dict[AttemptId, tuple[int, ...]]


class Prefill(Process[PrefillNode]):
    """Prefill's process."""

    role = "prefill"

    def __init__(self, around: Surroundings, node: PrefillNode, send: SendTo, stepper: Stepper) -> None:
        super().__init__(around, node, send, stepper)
        self.memory = around.new_memory(node.pool.num_pages)
        self.jobs: dict[AttemptId, Job] = {}
        self.passes: dict[PassId, ChunkPass] = {}
        self.batches: dict[tuple[AttemptId, BatchId], list[PageWrite]] = {}
        self.index = UnsaltedIndex() if around.setup.faults.unsalted else PrefixIndex()
        self.keys: dict[AttemptId, list[bytes]] = {}
        self._num_sessions = 0
        self.loop.rewrites = list(around.setup.rewrites)

    def receive(self, envelope: Envelope) -> None:
        """Look for pages that hold the prompt's beginning; say of a committed prompt's what is known already."""
        message, node = envelope.message, self.loop.node
        if isinstance(message, Dispatch):
            self.keys.setdefault(message.attempt, self._keys(message))
            self.loop.feed(Received(envelope, found=self.index.find(self.keys[message.attempt])))
        elif isinstance(message, Commit) and (own := _own_lot(node, message.attempt)) is not None:
            keys = self.keys[message.attempt][node.handoffs[message.attempt].num_shared :]
            self.loop.feed(Received(envelope, num_known=self.index.num_known(keys, own.serial)))
        else:
            super().receive(envelope)

    def _keys(self, message: Dispatch) -> list[bytes]:
        request, page_size = self.around.asked[message.attempt], self.loop.node.capacity.page_size
        full = range(message.num_tokens // page_size)
        blocks = (f"{request.content(position, page_size)} {position}".encode() for position in full)
        return self.index.keys(message.salt, blocks)

    def execute(self, command: Command) -> Iterable[Event] | None:
        """Forget what is no longer there to be shared."""
        if isinstance(command, Move) and command.move in (PageMove.RELEASE, PageMove.REVOKE):
            self.index.forget(command.serial, len(command.pages))
        return super().execute(command)

    def carry_out(self, command: Command) -> None:
        """Start, keep, post or stop."""
        match command:
            case StartPrefill():
                self._start(command)
            case Share(attempt=attempt, serial=serial, first=first, num_pages=num_pages):
                self.index.add(serial, self.keys[attempt][first : first + num_pages])
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

    def _start(self, command: StartPrefill) -> None:
        own = [PageTag(self.incarnation, command.serial, page) for page in command.pages]
        shared = [PageTag(self.incarnation, lot.serial, page) for lot in command.shared for page in lot.pages]
        self.jobs[command.attempt] = Job((*shared, *own), command.num_tokens, len(shared), len(shared))
        for tag in own:
            self.memory[tag.page].head = tag
        if self.around.setup.faults.shared_early and self.around.setup.prefix_reuse:
            self.index.add(command.serial, self.keys[command.attempt][len(shared) :])

    # ---- passes

    def _is_running(self, attempt: AttemptId) -> bool:
        handoff = self.loop.node.handoffs.get(attempt)
        return handoff is not None and handoff.phase is PrefillPhase.RUNNING

    def _ready(self) -> list[AttemptId]:
        handoffs = self.loop.node.handoffs
        return [
            attempt
            for attempt, job in self.jobs.items()
            if self._is_running(attempt) and not handoffs[attempt].passes and job.num_computed < len(job.tags)
        ]

    def begin_pass(self) -> None:
        """Compare heads and begin a chunk of some prompts."""
        attempts = self.around.some(self._ready())
        pass_id = PassId(self.loop.node.last_pass + 1)
        chunks = {}
        for attempt in attempts:
            job = self.jobs[attempt]
            end = min(len(job.tags), job.num_computed + self.around.setup.chunk_pages)
            chunks[attempt] = (job, job.num_computed, end)
        self.passes[pass_id] = ChunkPass(chunks, {a: self._bad(job) for a, (job, _, _) in chunks.items()})
        self.loop.feed(PassBegan(pass_id, tuple(attempts)))

    def _bad(self, job: Job) -> tuple[int, ...]:
        bad = self.memory.mismatches([(tag.page, tag) for tag in job.tags])
        return tuple(tag.page for tag in job.tags if tag.page in bad)

    def end_pass(self, pass_id: PassId) -> None:
        """Write the chunks, compare heads again and report."""
        chunk_pass = self.passes.pop(pass_id)
        finished = []
        bad = {}
        for attempt, (job, start, end) in chunk_pass.chunks.items():
            self._compute(attempt, job, start, end)
            job.reads += self._reads(job, end)
            wrong = (*chunk_pass.bad[attempt], *self._bad(job))
            if wrong:
                bad[attempt] = wrong
            if job.num_computed == len(job.tags):
                finished.append((attempt, EndReason.STOP))
                self.around.first_reads[attempt] = tuple(job.reads)
        self.loop.feed(PassEnded(pass_id, tuple(bad.items()), tuple(finished)))

    def _compute(self, attempt: AttemptId, job: Job, start: int, end: int) -> None:
        """Write a chunk's pages, also those of a prompt that was given up while the pass ran."""
        page_size = self.loop.node.capacity.page_size
        for position in range(start, end):
            page = job.tags[position].page
            self.note_stray(page, job.tags[position].serial)
            whole = (position + 1) * page_size <= job.num_tokens
            written = self.around.written(attempt, position, self.loop.node.layout)
            self.memory[page].fill(written, whole=whole)
        job.num_computed = end

    def _reads(self, job: Job, end: int) -> list[PageRead]:
        cells = ((i, tag.page, self.memory[tag.page]) for i, tag in enumerate(job.tags[:end]))
        return [PageRead(page, i, tuple(cell.body)) for i, page, cell in cells]

    def seal(self, attempt: AttemptId) -> None:
        """Zero the unused slots of the computed pages, stamp them and report."""
        job = self.jobs[attempt]
        page_size = self.loop.node.capacity.page_size
        zeroed = True
        for position in range(job.num_sealed, job.num_computed):
            tag = job.tags[position]
            num_tokens = min(page_size, job.num_tokens - position * page_size)
            zero = not self.around.setup.faults.unzeroed
            zeroed = self.memory[tag.page].seal(tag, num_tokens, zero=zero) and zeroed
        job.num_sealed = job.num_computed
        stamps = [stamp for tag in job.tags[: job.num_sealed] if (stamp := self.memory[tag.page].tail) is not None]
        self.loop.feed(PagesSealed(attempt, job.num_sealed, zeroed, self.memory.digest_of(stamps)))

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
                write.source = write.source.frozen()
        for attempt, batch in list(self.batches):
            self.batches.pop((attempt, batch))
            self.loop.feed(BatchEnded(attempt, batch, success=False, source_quiet=True))
        self._num_sessions += 1
        self.loop.feed(SessionRebuilt(SessionId(f"{self.incarnation}/{self._num_sessions}")))

    def spoil(self, page: int) -> None:
        """A stray write covers a page up to its tail."""
        cell = self.memory[page]
        cell.head, cell.body = PageTag(FORMER_LIFE, 0, page), [CORRUPT] * HALVES

    @property
    def needs_rebuild(self) -> bool:
        """Are source pages waiting for the own engine's end?"""
        return bool(self.loop.node.pool.quarantined)


def _own_lot(node: PrefillNode, attempt: AttemptId) -> Lot | None:
    handoff = node.handoffs.get(attempt)
    return handoff.lot if handoff is not None else None
