"""The cases for vLLM with NixlConnector, where decode pulls from addresses that the request names.

Each takes blocks of the probe's own requests alone. A prompt shorter than a block is not in the prefix cache, and its
block is the first to be used again: so whatever stands in a block that prefill gave back is what the other tenant of
this probe wrote there last, on a pair that serves nobody else.

Source: public reports for vLLM (issues 21570 and 52234, pull requests 32208 and 50558).
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from kvfence.evidence.vllm import ASK_PREFILL
from kvfence.probe.handoff.bench import ANSWER_TOKENS, Bench, Case
from kvfence.probe.handoff.canary import Canary
from kvfence.probe.handoff.errors import NotTried
from kvfence.probe.handoff.pair import Role
from kvfence.probe.handoff.trial import Reply, Tried

SHORT_MAX = 48
LONG_MIN = 40
BEHIND = 2
"""Tokens of a long prompt behind its last whole block."""

FAR = 1_000_000
"""Added to block numbers that nobody has."""

TAKEN = "vllm:external_prefix_cache_hits_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
POLL_S = 0.25

Params = dict[str, Any]


def short_of(bench: Bench) -> int:
    """Give the length of a prompt that leaves its one block partly empty, with its answer's first token in it."""
    return min(bench.lengths.block - 2, SHORT_MAX)


def long_of(bench: Bench) -> int:
    """Give the length of a prompt that fills blocks, and a little behind them."""
    block = bench.lengths.block
    return block * -(-LONG_MIN // block) + BEHIND


async def prefilled(bench: Bench, tokens: Sequence[int]) -> Params:
    """Let prefill compute a prompt and keep its pages; give the hand-off that it answers with.

    Raises:
        NotTried: it refuses, or gives none.
    """
    reply = await bench.pair.complete(Role.PREFILL, tokens, 1, {"kv_transfer_params": ASK_PREFILL})
    if reply.status != 200:
        raise NotTried(f"prefill refused an honest prompt ({reply.status}): {reply.message}")
    if not reply.params:
        raise NotTried("prefill gives no kv_transfer_params: is it a NixlConnector with a prefill's role?")
    return reply.params


async def taken_over(bench: Bench, canary: Canary, params: Params) -> Reply:
    """Let decode take a hand-off for a prompt."""
    return await bench.pair.complete(Role.DECODE, canary.tokens, ANSWER_TOKENS, {"kv_transfer_params": params})


async def written(bench: Bench, canary: Canary) -> None:
    """Let the other tenant's prompt be computed at prefill, where it leaves its pages behind."""
    reply = await bench.pair.complete(Role.PREFILL, canary.tokens, 1)
    if reply.status != 200:
        raise NotTried(f"prefill refused the other tenant's prompt ({reply.status}): {reply.message}")


async def honest_short(bench: Bench) -> Tried:
    """Hand over a prompt of less than a block, as it should be."""
    return await _honest(bench, short_of(bench))


async def honest_long(bench: Bench) -> Tried:
    """Hand over a prompt of several blocks, as it should be."""
    return await _honest(bench, long_of(bench))


async def _honest(bench: Bench, num_tokens: int) -> Tried:
    own, other = await bench.two(num_tokens)
    before = await _sum(bench, Role.DECODE, TAKEN)
    reply = await taken_over(bench, own, await prefilled(bench, own.tokens))
    after = await _sum(bench, Role.DECODE, TAKEN)
    if reply.status == 200 and before is not None and after == before:
        raise NotTried("decode computed the prompt itself and took nothing from prefill: is it a decode of this pair?")
    return Tried(reply=reply, own=own, other=other)


async def short_count(bench: Bench) -> Tried:
    """Prefill computes one token of the prompt that decode has reserved for."""
    own, other = await bench.two(short_of(bench))
    await written(bench, other)
    params = await prefilled(bench, own.tokens[:1])
    return Tried(reply=await taken_over(bench, own, params), own=own, other=other)


async def stale_lease(bench: Bench) -> Tried:
    """Decode comes after prefill's lease is over and the block is another's."""
    own, other = await bench.two(short_of(bench))
    before = await _sum(bench, Role.PREFILL, EXPIRED)
    params = await prefilled(bench, own.tokens)
    await _lease_over(bench, before)
    await written(bench, other)
    return Tried(reply=await taken_over(bench, own, params), own=own, other=other)


async def forged_reference(bench: Bench) -> Tried:
    """Decode gets one tenant's prompt with the other tenant's hand-off."""
    own, other = await bench.two(long_of(bench))
    params = await prefilled(bench, other.tokens)
    return Tried(reply=await taken_over(bench, own, params), own=own, other=other)


async def poisoned_prefix(bench: Bench) -> Tried:
    """After such a hand-off decode gets that prompt once more, honestly and without any."""
    tried = await forged_reference(bench)
    again = await bench.pair.complete(Role.DECODE, tried.own.tokens, ANSWER_TOKENS)
    return Tried(reply=again, own=tried.own, other=tried.other)


async def one_block_too_many(bench: Bench) -> Tried:
    """Prefill computes a prompt that is a block longer, with the other tenant's text behind its first block."""
    own, other = await bench.two(long_of(bench))
    params = await prefilled(bench, (*own.tokens[: bench.lengths.block], *other.tokens))
    return Tried(reply=await taken_over(bench, own, params), own=own, other=other)


async def one_block_too_few(bench: Bench) -> Tried:
    """Prefill computes a block less than decode has reserved."""
    own, other = await bench.two(long_of(bench))
    params = await prefilled(bench, own.tokens[: -BEHIND or None])
    return Tried(reply=await taken_over(bench, own, params), own=own, other=other)


async def replayed(bench: Bench) -> Tried:
    """Decode takes one hand-off twice; between, prefill uses the block for the other tenant."""
    own, other = await bench.two(short_of(bench))
    params = await prefilled(bench, own.tokens)
    first = await taken_over(bench, own, params)
    if first.status != 200:
        raise NotTried(f"decode refused an honest hand-off ({first.status}): {first.message}")
    await written(bench, other)
    return Tried(reply=await taken_over(bench, own, params), own=own, other=other)


async def unknown_block(bench: Bench) -> Tried:
    """Decode is sent to blocks that no pool has, also where a guard lets a hand-off name none."""
    own, other = await bench.two(long_of(bench))
    params = await prefilled(bench, own.tokens)
    nowhere = params | {"remote_block_ids": _moved(params.get("remote_block_ids") or [[0]])}
    return Tried(reply=await taken_over(bench, own, nowhere), own=own, other=other)


def _moved(ids: Any) -> Any:
    """Move every block's number far beyond any pool, in lists of any depth."""
    return [_moved(each) for each in ids] if isinstance(ids, list) else FAR + int(ids)


async def _sum(bench: Bench, role: Role, name: str) -> float | None:
    """Sum what a worker counts under a name; None where it does not count that."""
    samples = (await bench.pair.metrics(role)).get(name)
    return sum(value for _, value in samples) if samples else None


async def _lease_over(bench: Bench, before: float | None) -> None:
    """Wait as long as the lease, until prefill says that one ran out; where it says nothing, until it must have."""
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < bench.lease_s * 1.5 + 2:
        now = await _sum(bench, Role.PREFILL, EXPIRED)
        if waited_s >= bench.lease_s and before is not None and now is not None and now > before:
            return
        await asyncio.sleep(POLL_S)
    if before is not None:
        raise NotTried(f"prefill's lease was not over after {bench.lease_s * 1.5 + 2:.0f} s: name it with --lease-s")


HONEST = (
    Case(name="honest-short", does="a sound hand-off of less than a block", may="", requests=2, attempt=honest_short),
    Case(name="honest-long", does="a sound hand-off of several blocks", may="", requests=2, attempt=honest_long),
)

# The first leaves no lease of another case behind it, whose end could be taken for its own.
CASES = (
    Case(
        name="stale-lease",
        does="decode comes after the lease, when the block is the other tenant's",
        may="answer out of the other tenant's block; waits for --lease-s",
        requests=4,
        attempt=stale_lease,
    ),
    Case(
        name="short-count",
        does="prefill computes one token, decode takes the whole prompt",
        may="answer out of what was left in the block",
        requests=4,
        attempt=short_count,
    ),
    Case(
        name="forged-reference",
        does="decode gets one tenant's prompt with the other's hand-off",
        may="answer with the other tenant's text, and keep it in its prefix cache under the asker's prompt",
        requests=3,
        attempt=forged_reference,
    ),
    Case(
        name="poisoned-prefix",
        does="the same, and then that prompt again without a hand-off",
        may="answer an honest request with the other tenant's text, out of its prefix cache",
        requests=4,
        attempt=poisoned_prefix,
    ),
    Case(
        name="one-block-too-many",
        does="prefill computes a block more than decode has reserved",
        may="read the wrong blocks, and keep them in its prefix cache",
        requests=3,
        attempt=one_block_too_many,
    ),
    Case(
        name="replayed",
        does="decode takes one hand-off twice, and the block is the other tenant's by then",
        may="answer out of the other tenant's block",
        requests=5,
        attempt=replayed,
    ),
    Case(
        name="unknown-block",
        does="decode is sent to blocks that do not exist",
        may="fail the request; count a failed transfer",
        requests=3,
        attempt=unknown_block,
    ),
    Case(
        name="one-block-too-few",
        does="prefill computes a block less than decode has reserved",
        may="END THE DECODE ENGINE for everybody (vLLM 0.32.0 does)",
        requests=3,
        attempt=one_block_too_few,
        crashes=True,
    ),
)
