"""The scheduler's half at decode: which hand-offs are taken, and what has to land where.

A hand-off is judged when its request comes, before vLLM looks at it: nothing of it is used that is not in the seal.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, new_incarnation
from kvfence.guard.handoff import Expected, Verdict, verify
from kvfence.guard.key import Key
from kvfence.guard.vllm.facts import Facts
from kvfence.guard.vllm.manifest import DIGEST_BYTES, FIELD, Groups, Manifest, prompt_code, unseal
from kvfence.guard.vllm.orders import ReceiveOrder
from kvfence.protocol.guards import Decision

ATTEMPTS_MAX = 65_536
"""Hand-offs of one prefill that are remembered as used; older ones are taken for used."""

SENDERS_MAX = 1024
"""Lives of prefill workers that are remembered."""


class _Used(Struct):
    """The used attempts of one life of a prefill. ``floor``: at and below it all are."""

    counters: set[int]
    floor: int = 0


class DecodeFence:
    """One decode's hand-offs."""

    def __init__(self, key: Key, facts: Facts, *, enforces: bool) -> None:
        self.incarnation: Incarnation = new_incarnation()
        self._key, self._facts, self._enforces = key, facts, enforces
        self._taken: dict[str, Manifest] = {}
        self._refused: set[str] = set()
        self._landing: dict[str, tuple[int, ...]] = {}
        self._used: OrderedDict[Incarnation, _Used] = OrderedDict()

    # ---- when a request comes ----

    def judge(self, request: Any) -> Verdict:
        """Take a request's hand-off or refuse it; afterwards its parameters are the sealed ones, or none."""
        params = request.kv_transfer_params
        manifest = unseal(self._key, params.get(FIELD))
        verdict = self._verdict(request, manifest)
        if verdict.holds and manifest is not None:
            self._taken[request.request_id] = manifest
            params.clear()
            params.update(manifest.params)
        elif self._enforces:
            self._refused.add(request.request_id)
            params.clear()
            params.update(do_remote_prefill=False)
        else:
            params.pop(FIELD, None)
        return verdict

    def _verdict(self, request: Any, manifest: Manifest | None) -> Verdict:
        num_tokens, facts = len(request.prompt_token_ids or ()), self._facts
        if manifest is None:
            nobody = AttemptId(self.incarnation, 0)
            return verify(Expected(nobody, num_tokens, 0, facts.layout), None, None, enforced=self._enforces)
        code = prompt_code(self._key, request)
        if code is None or manifest.prompt != code:
            decision = Decision("stamp-at-adopt", "decode", manifest.attempt, False, self._enforces, not self._enforces)
            return Verdict((decision,), "the hand-off is of another prompt, salt or adapter")
        current = manifest.attempt if self._use(manifest) else AttemptId(self.incarnation, 0)
        num_pages = sum(map(len, manifest.blocks)) if self._fits(manifest) else -1
        expected = Expected(current, num_tokens, num_pages, facts.layout)
        return verify(expected, manifest.promise, None, enforced=self._enforces)

    def _fits(self, manifest: Manifest) -> bool:
        """Are there as many blocks as the tokens need, and a digest for each? A window may send fewer, never more."""
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
            and 0 < computed <= manifest.promise.num_tokens
        )

    def _use(self, manifest: Manifest) -> bool:
        """Use an attempt up, once, whatever a client calls its request."""
        attempt = manifest.attempt
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
        self._landing[request_id] = tuple(block for group in blocks for block in group)
        return ReceiveOrder(blocks, tuple(_tails(manifest.blocks, counts, each) for each in manifest.digests))

    def attempt(self, request_id: str) -> AttemptId | None:
        """Give the attempt of a hand-off that was taken."""
        manifest = self._taken.get(request_id)
        return manifest.attempt if manifest is not None else None

    def landing(self, request_id: str) -> tuple[int, ...]:
        """Give the blocks that a receive writes to; none once it has ended."""
        return self._landing.get(request_id, ())

    def landed(self, request_id: str) -> None:
        """A receive has ended, well or not."""
        self._landing.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A request has ended; a receive of it may still be under way."""
        self._taken.pop(request_id, None)
        self._refused.discard(request_id)


def _tails(sent: Groups, counts: Sequence[tuple[int, int]], digests: bytes) -> bytes:
    """Give the digests of the last blocks of each group, where decode has the first ones already."""
    parts, at = [], 0
    for group, (mine, _) in zip(sent, counts, strict=True):
        end = at + len(group) * DIGEST_BYTES
        parts.append(digests[end - mine * DIGEST_BYTES : end])
        at = end
    return b"".join(parts)
