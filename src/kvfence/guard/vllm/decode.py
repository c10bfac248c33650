"""The scheduler's half at decode: which hand-offs are taken, and what has to land where.

A hand-off is judged when its request comes, before vLLM looks at it: nothing of it is used that is not in the seal.
Every fact goes through the watcher, which writes the trace.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.ids import FORMER_LIFE, AttemptId, Incarnation
from kvfence.guard.handoff import Expected, Limits, Verdict, as_promised, compare_limits, verify
from kvfence.guard.key import Key
from kvfence.guard.vllm.facts import Facts
from kvfence.guard.vllm.manifest import DIGEST_BYTES, FIELD, Groups, Manifest, prompt_code, unseal
from kvfence.guard.vllm.orders import ReceiveOrder
from kvfence.guard.watcher import Watcher
from kvfence.protocol.guards import Decision
from kvfence.protocol.watched import Asked, Compared, Misread, Promised, Reserved, Returning, Said, Used

ATTEMPTS_MAX = 65_536
"""Hand-offs of one prefill that are remembered as used; older ones are taken for used."""

SENDERS_MAX = 1024
"""Lives of prefill workers that are remembered."""

OTHER = "other"
"""Stands in a trace for the digest of bytes that are not what was promised."""

NOBODY = AttemptId(FORMER_LIFE, 0)
"""Stands for the attempt of a hand-off that has none, or one that is used up."""


class _Used(Struct):
    """The used attempts of one life of a prefill. ``floor``: at and below it all are."""

    counters: set[int]
    floor: int = 0


class _Landing(Struct, frozen=True):
    """A receive under way, or one that has failed. ``promised``: None where what was refused is read, observed."""

    attempt: AttemptId
    num_tokens: int
    blocks: tuple[int, ...]
    promised: Promised | None


class DecodeFence:
    """One decode's hand-offs."""

    def __init__(self, key: Key, facts: Facts, watcher: Watcher, *, enforces: bool) -> None:
        self._key, self._facts, self._watcher, self._enforces = key, facts, watcher, enforces
        self._taken: dict[str, Manifest] = {}
        self._refused: set[str] = set()
        self._observed: dict[str, int] = {}
        """In ``observe``, by request, the tokens of its prompt."""
        self._num_unpromised = 0
        self._landing: dict[str, _Landing] = {}
        self._users: dict[int, AttemptId] = {}
        self._blocks: dict[AttemptId, tuple[int, ...]] = {}
        self._used: OrderedDict[Incarnation, _Used] = OrderedDict()
        self._differs: list[str] = []

    # ---- when a request comes ----

    def judge(self, request: Any) -> Verdict:
        """Take a request's hand-off or refuse it; afterwards its parameters are the sealed ones, or none."""
        params = request.kv_transfer_params
        manifest = unseal(self._key, params.get(FIELD))
        verdict = self._verdict(request, manifest)
        if not self._enforces:
            self._observed[request.request_id] = len(request.prompt_token_ids or ())
        if verdict.holds and manifest is not None:
            self._taken[request.request_id] = manifest
            params.clear()
            params.update(manifest.params)
        else:
            if self._enforces:
                self._refused.add(request.request_id)
            self.drop(params)
        return verdict

    def drop(self, params: dict[str, Any]) -> None:
        """Leave nothing of a hand-off that vLLM could read; in ``observe`` all that is not the guard's."""
        params.pop(FIELD, None)
        if self._enforces:
            params.clear()
            params.update(do_remote_prefill=False)

    def _verdict(self, request: Any, manifest: Manifest | None) -> Verdict:
        num_tokens, layout, enforced = len(request.prompt_token_ids or ()), self._facts.layout, self._enforces
        if manifest is None:
            expected = Expected(NOBODY, num_tokens, 0, layout)
            return self._see(expected, None, verify(expected, None, None, enforced=enforced))
        code = prompt_code(self._key, request)
        if code is None or manifest.prompt != code:
            expected = Expected(manifest.attempt, num_tokens, 0, layout)
            decision = Decision("stamp-at-adopt", "decode", manifest.attempt, False, enforced, not enforced)
            verdict = Verdict((decision,), "the hand-off is of another prompt, salt or adapter")
            return self._see(expected, manifest, verdict, ("stamp-at-adopt",))
        current = manifest.attempt if self._use(manifest) else NOBODY
        num_pages = manifest.promise.num_pages if self._fits(manifest) else 0
        expected = Expected(current, num_tokens, num_pages, layout)
        return self._see(expected, manifest, verify(expected, manifest.promise, None, enforced=enforced))

    def _see(
        self, expected: Expected, manifest: Manifest | None, verdict: Verdict, doubts: tuple[str, ...] = ()
    ) -> Verdict:
        promised = as_promised(manifest.promise) if manifest is not None else None
        event = Compared(expected.attempt, expected.num_tokens, expected.num_pages, promised, None, doubts)
        self._watcher.see(event, decided=verdict.decisions)
        return verdict

    def _fits(self, manifest: Manifest) -> bool:
        """Did prefill compute what it was asked, are there as many blocks as that needs, and a digest for each?

        A window may send fewer blocks, never more. The last token's own KV may be left out (a state-space model's
        prefill stops there): decode computes that token again.
        """
        sizes = self._facts.block_tokens
        computed = manifest.computed_tokens
        counts = [(len(group), -(-computed // size)) for group, size in zip(manifest.blocks, sizes, strict=False)]
        whole = sum(map(len, manifest.blocks)) * DIGEST_BYTES
        return (
            len(manifest.blocks) == len(sizes)
            and all(0 < have <= need for have, need in counts)
            and (len(sizes) > 1 or all(have == need for have, need in counts))
            and len(manifest.digests) == self._facts.ranks
            and all(len(each) == whole for each in manifest.digests)
            and computed > 0
            and manifest.promise.num_tokens - 1 <= computed <= manifest.promise.num_tokens
            and manifest.promise.num_pages == sum(map(len, manifest.blocks))
        )

    def _use(self, manifest: Manifest) -> bool:
        """Use an attempt up, once, whatever a client calls its request."""
        attempt, promise = manifest.attempt, manifest.promise
        if attempt.gateway not in self._used:
            own = Limits(self._facts.pool_tokens, self._facts.context_tokens)
            self._differs += compare_limits(own, Limits(promise.pool_tokens, promise.context_tokens))
        used = self._used.setdefault(attempt.gateway, _Used(set()))
        self._used.move_to_end(attempt.gateway)
        while len(self._used) > SENDERS_MAX:
            self._used.popitem(last=False)
        if attempt.counter <= used.floor or attempt.counter in used.counters:
            return False
        used.counters.add(attempt.counter)
        if len(used.counters) > ATTEMPTS_MAX:
            used.floor = min(used.counters)
            used.counters.remove(used.floor)
        return True

    def take_differences(self) -> tuple[str, ...]:
        """Give, once for each life of a prefill, where its pool and context do not go with ours."""
        found, self._differs = tuple(self._differs), []
        return found

    # ---- when vLLM has given it blocks ----

    def is_refused(self, request_id: str) -> bool:
        """Was this request's hand-off refused?"""
        return request_id in self._refused

    def is_taken(self, request_id: str) -> bool:
        """Was this request's hand-off taken?"""
        return request_id in self._taken

    def expects(self, request_id: str, local: Sequence[Sequence[int]]) -> ReceiveOrder | str:
        """Say what will land in the blocks that vLLM reserved, or why these cannot be the ones that were promised."""
        manifest = self._taken.get(request_id)
        if manifest is None:
            return "vLLM would read a hand-off that was not taken"
        counts = [(len(mine), len(theirs)) for mine, theirs in zip(local, manifest.blocks, strict=False)]
        if len(local) != len(manifest.blocks) or any(not 0 < mine <= theirs for mine, theirs in counts):
            reserved, sent = sum(map(len, local)), sum(map(len, manifest.blocks))
            return f"decode reserved {reserved} blocks where prefill sends {sent}"
        blocks: Groups = tuple(tuple(group) for group in local)
        self._reserve(
            request_id,
            _Landing(manifest.attempt, manifest.promise.num_tokens, _flat(local), as_promised(manifest.promise)),
        )
        return ReceiveOrder(blocks, tuple(_tails(manifest.blocks, counts, each) for each in manifest.digests))

    def read_all_the_same(self, request_id: str, local: Sequence[Sequence[int]]) -> None:
        """In ``observe`` vLLM reads what was refused: its blocks are set aside for an attempt that nobody promised."""
        self._num_unpromised += 1
        attempt = AttemptId(FORMER_LIFE, self._num_unpromised)
        self._reserve(request_id, _Landing(attempt, self._observed.get(request_id, 0), _flat(local), None))

    def _reserve(self, request_id: str, landing: _Landing) -> None:
        self._landing[request_id] = landing
        self._users.update(dict.fromkeys(landing.blocks, landing.attempt))
        self._blocks[landing.attempt] = landing.blocks
        self._watcher.see(Reserved(landing.attempt, landing.num_tokens, landing.blocks))

    def granted(self, blocks: Iterable[int]) -> list[tuple[str, int]]:
        """vLLM grants blocks anew: what they were for before is over, and all of it has come back.

        Give the requests whose receive is still under way, with the block that is another's by now.
        """
        back = {self._users[block]: block for block in blocks if block in self._users}
        for attempt in back:
            self._watcher.see(Returning(attempt))
            self._forget_blocks(attempt)
        return [(name, back[each.attempt]) for name, each in self._landing.items() if each.attempt in back]

    def _forget_blocks(self, attempt: AttemptId) -> None:
        for block in self._blocks.pop(attempt, ()):
            if self._users.get(block) == attempt:
                del self._users[block]

    # ---- when it has come, or not ----

    def posted(self, request_id: str) -> None:
        """A read into a request's blocks is under way."""
        landing = self._landing.get(request_id)
        if landing is not None:
            num_pages, layout = len(landing.blocks), self._facts.layout
            self._watcher.see(Said(Asked(landing.attempt, landing.num_tokens, num_pages, layout)))

    def compared(self, request_id: str, *, holds: bool) -> tuple[Decision, ...]:
        """The bytes of a receive were compared; where they hold, or are to be used all the same, they are used."""
        landing = self._landing.get(request_id)
        if landing is None or landing.promised is None:
            return (Decision("stamp-at-adopt", "decode", NOBODY, False, self._enforces, not self._enforces),)
        promised, attempt = landing.promised, landing.attempt
        digest = promised.digest if holds else OTHER
        decided = self._watcher.see(
            Compared(attempt, promised.num_tokens, promised.num_pages, promised, digest)
        ).decisions
        if holds or not self._enforces:
            self._watcher.see(Used(attempt))
        return decided

    def held(self, request_id: str) -> tuple[int, ...]:
        """A receive failed while a write may be on its way: give its blocks, once, which are to stay out of the pool.

        In ``observe`` none: vLLM grants them anew when it likes.
        """
        landing = self._landing.get(request_id)
        if landing is None or not landing.blocks:
            return ()
        if not self._enforces:
            if landing.promised is None:
                self.posted(request_id)
            return ()
        self._watcher.see(Returning(landing.attempt))
        self._forget_blocks(landing.attempt)
        self._landing[request_id] = replace(landing, blocks=())
        return landing.blocks

    def misread(self, request_id: str, block: int) -> None:
        """A step's table names a block of another use."""
        manifest = self._taken.get(request_id)
        self._watcher.see(Misread(manifest.attempt if manifest is not None else NOBODY, (block,)))

    def landed(self, request_id: str, *, failed: bool) -> None:
        """A receive has ended, well or not."""
        landing = self._landing.pop(request_id, None)
        if landing is not None and landing.promised is None and not failed:
            self._watcher.see(Used(landing.attempt))

    def forget(self, request_id: str) -> None:
        """A request has ended; a receive of it may still be under way."""
        self._taken.pop(request_id, None)
        self._refused.discard(request_id)
        self._observed.pop(request_id, None)


def _flat(groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(block for group in groups for block in group)


def _tails(sent: Groups, counts: Sequence[tuple[int, int]], digests: bytes) -> bytes:
    """Give the digests of the last blocks of each group, where decode has the first ones already."""
    parts, at = [], 0
    for group, (mine, _) in zip(sent, counts, strict=True):
        end = at + len(group) * DIGEST_BYTES
        parts.append(digests[end - mine * DIGEST_BYTES : end])
        at = end
    return b"".join(parts)
