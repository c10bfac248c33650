"""The scheduler's half at prefill: which blocks a step completes, and what is promised of them once they are digested.

vLLM makes the parameters of a hand-off before the step's digests have come back, and sends them after: the manifest is
written into them in between.
"""

from collections.abc import Callable
from itertools import dropwhile
from typing import Any

import xxhash
from msgspec import Struct, field

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.guard.handoff import as_promised
from kvfence.guard.key import Key
from kvfence.guard.messages import Promise
from kvfence.guard.vllm.facts import Facts
from kvfence.guard.vllm.ledger import Ledger, Tables
from kvfence.guard.vllm.manifest import DIGEST_BYTES, FIELD, VERSION, Groups, Manifest, prompt_code, seal
from kvfence.guard.vllm.orders import Orders
from kvfence.guard.watcher import Watcher
from kvfence.protocol.watched import Said

OPEN = ("do_remote_decode",)
"""Of what a client sends to prefill nothing else is taken: an address there would make prefill read from it."""


class _Outgoing(Struct):
    """One request that prefill computes for a decode.

    ``blocks``: of the whole prompt, once they are digested. ``tags``: their serials then, by group and block.
    ``last``: by group, the block that ends it, and its serial.
    """

    prompt: bytes | None
    num_tokens: int
    request: Any
    blocks: Groups = ()
    tags: dict[tuple[int, int], int] = field(default_factory=dict)
    last: dict[int, tuple[int, ...]] = field(default_factory=dict)


class PrefillFence:
    """One prefill's hand-offs. ``life``: its attempts are of it."""

    def __init__(self, key: Key, facts: Facts, life: Incarnation, watcher: Watcher, *, enforces: bool) -> None:
        self._key, self._facts, self._life, self._watcher, self._enforces = key, facts, life, watcher, enforces
        self._counter = 0
        self._outgoing: dict[str, _Outgoing] = {}
        self._ended: list[tuple[str, _Outgoing, dict[str, Any], dict[str, Any]]] = []

    def admit(self, request: Any) -> None:
        """Note a request that a decode will want, before vLLM cuts its prompt; an address in it is dropped."""
        params = request.kv_transfer_params
        tokens = request.prompt_token_ids
        self._outgoing[request.request_id] = _Outgoing(prompt_code(self._key, request), len(tokens or ()), request)
        if self._enforces:
            kept = {name: params[name] for name in OPEN if name in params}
            params.clear()
            params.update(kept, do_remote_prefill=False)

    def order(self, request_id: str, num_scheduled: int, tables: Tables, ledger: Ledger, orders: Orders) -> None:
        """Say what to make zero before a step's pass, and what to digest after it where it ends a prompt."""
        outgoing = self._outgoing.get(request_id)
        table = tables(request_id) if outgoing is not None else None
        if outgoing is None or table is None:
            return
        request, sizes = outgoing.request, self._facts.block_tokens
        num_tokens = int(request.num_prompt_tokens)
        for group, (blocks, size) in enumerate(zip(table, sizes, strict=True)):
            place = num_tokens // size
            if num_tokens % size and place < len(blocks):
                use = (blocks[place], *ledger.serials(blocks[place : place + 1]))
                if self._enforces and outgoing.last.get(group) != use:
                    outgoing.last[group] = use
                    orders.zero.append((group, blocks[place]))
        if int(request.num_computed_tokens) + num_scheduled >= num_tokens:
            outgoing.blocks = tuple(
                tuple(blocks[: -(-num_tokens // size)]) for blocks, size in zip(table, sizes, strict=True)
            )
            outgoing.tags = _places(outgoing.blocks, tuple(map(ledger.serials, outgoing.blocks)))
            orders.seal[request_id] = outgoing.blocks

    def ended(self, request_id: str, params: dict[str, Any] | None) -> None:
        """A request has ended: what vLLM would send openly is taken out of its hand-off until it can be sealed."""
        outgoing = self._outgoing.pop(request_id, None)
        if outgoing is None or params is None or not params.get("do_remote_prefill"):
            return
        self._ended.append((request_id, outgoing, params, dict(params)))
        if self._enforces:
            params.clear()
            params.update(do_remote_prefill=False, do_remote_decode=False)

    def promise(
        self, digests: dict[str, dict[int, bytes]], ledger: Ledger, refuse: Callable[[str, str, str], None]
    ) -> None:
        """Write the manifests of what has ended in this step; who gets none is told to ``refuse``."""
        for request_id, outgoing, sent, params in self._ended:
            sent_blocks = _sent(params, ledger)
            tags = tuple(map(ledger.serials, sent_blocks))
            why = self._cannot(outgoing, _places(sent_blocks, tags), digests.get(request_id))
            if why:
                refuse(request_id, "stamp-at-adopt", why)
                continue
            manifest = self._manifest(outgoing, params, sent_blocks, tags, digests[request_id])
            self._watcher.see(Said(as_promised(manifest.promise)))
            sent[FIELD] = seal(self._key, manifest)
        self._ended.clear()

    def _cannot(self, outgoing: _Outgoing, sent: dict[tuple[int, int], int], digests: dict[int, bytes] | None) -> str:
        if outgoing.prompt is None:
            return "a prompt of embeddings cannot be promised"
        if digests is None or set(digests) != set(range(self._facts.ranks)):
            return "it did not end with the step that computed its prompt: ask prefill for one token (max_tokens 1)"
        if not sent or not outgoing.tags.keys() >= sent.keys():
            return "vLLM sends blocks that the prompt's last step did not have"
        if any(outgoing.tags[place] != tag for place, tag in sent.items()):
            return "a block that vLLM sends has been granted anew since it was digested"
        return ""

    def _manifest(
        self, outgoing: _Outgoing, params: dict[str, Any], blocks: Groups, tags: Groups, digests: dict[int, bytes]
    ) -> Manifest:
        self._counter += 1
        facts = self._facts
        cut = tuple(_cut(outgoing.blocks, blocks, digests[rank]) for rank in range(facts.ranks))
        return Manifest(
            version=VERSION,
            promise=Promise(
                attempt=AttemptId(self._life, self._counter),
                room=0,
                sender=self._life,
                num_tokens=outgoing.num_tokens,
                num_pages=sum(map(len, blocks)),
                layout=facts.layout,
                digest=xxhash.xxh3_128_hexdigest(b"".join(cut)),
                pool_tokens=facts.pool_tokens,
                context_tokens=facts.context_tokens,
            ),
            prompt=outgoing.prompt or b"",
            computed_tokens=int(params.get("remote_num_tokens") or 0),
            blocks=blocks,
            tags=tags,
            digests=cut,
            params=params,
        )


def _sent(params: dict[str, Any], ledger: Ledger) -> Groups:
    """Give the blocks that are sent: what stands before a window is a placeholder, and no decode may read it."""
    return tuple(tuple(dropwhile(ledger.is_null, group)) for group in params.get("remote_block_ids") or ())


def _places(blocks: Groups, tags: Groups) -> dict[tuple[int, int], int]:
    """Give the serial of each block by its group and number: a number means another block in another group."""
    return {
        (group, block): tag
        for group, (each, serials) in enumerate(zip(blocks, tags, strict=True))
        for block, tag in zip(each, serials, strict=True)
    }


def _cut(have: Groups, want: Groups, digests: bytes) -> bytes:
    """Give the digests of the blocks that are sent, of those that were digested; a window sends its last ones."""
    places: dict[tuple[int, int], bytes] = {}
    at = 0
    for group, blocks in enumerate(have):
        for block in blocks:
            places[group, block] = digests[at : at + DIGEST_BYTES]
            at += DIGEST_BYTES
    return b"".join(places[group, block] for group, blocks in enumerate(want) for block in blocks)
