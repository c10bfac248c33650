"""Blocks that vLLM's pool gives away under a request: who fails, before a token leaves, and what is not promised."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_pair import ASKS, OWN, VICTIM, Maker, counts, pair, refusals

from kvfence.core.invariant import InvariantBroken
from kvfence.guard.vllm.manifest import FIELD
from kvfence.guard.vllm.orders import Report
from kvfence.guard.vllm.prefill import _Outgoing


@contextmanager
def slow_reads() -> Iterator[None]:
    """Let no read end meanwhile."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import Wire

    Wire.slow = True
    try:
        yield
    finally:
        Wire.slow = False


def test_a_block_granted_under_a_receive_fails_the_receive(fenced: Maker) -> None:
    """The pool gives a block away into which a read is under way: neither request is computed on it."""
    from engines import Request

    prefill, decode = pair(fenced)
    request = Request(OWN, prefill.run(OWN, ASKS))
    with slow_reads():
        decode.begin(request)
        blocks = decode._tables[request.request_id]
        decode.pool.free_blocks(blocks)
        assert decode.pool.get_new_blocks(1)[0] in blocks
        decode.step([])
    deadline = time.monotonic() + 30
    while request.request_id not in decode.answers and time.monotonic() < deadline:
        decode.step([])
    assert decode.answers[request.request_id] is None
    assert counts(decode)["decode stamp-at-read refuse"] == 1


def ready(decode: Any, request: Any) -> None:
    """Run steps until a request's read is over and verified; its first pass is the next step's."""
    decode.begin(request)
    come(decode, request)


def come(decode: Any, request: Any) -> None:
    """Run steps until what a request reads has come."""
    deadline = time.monotonic() + 30
    while not decode._ready and time.monotonic() < deadline:
        decode.step([])
    assert decode._ready == [request]


@pytest.mark.parametrize("place", range(3))
def test_a_block_granted_between_a_verified_read_and_its_first_pass_fails_the_request(
    fenced: Maker, place: int
) -> None:
    """The pool gives a block away that was read into and compared, before anything was computed on it."""
    from engines import Request

    prefill, decode = pair(fenced)
    request = Request(OWN, prefill.run(OWN, ASKS))
    ready(decode, request)
    lost = decode._tables[request.request_id][place]
    decode.pool.free_blocks([lost])
    assert decode.pool.get_new_blocks(1) == [lost]
    decode.step([])
    assert decode.answers[request.request_id] is None
    assert counts(decode)["decode stamp-at-read refuse"] == 1


def test_a_read_that_outlives_its_request_is_not_remembered(fenced: Maker) -> None:
    """The client left while its blocks travelled: nothing is kept of it once they have come."""
    from engines import Request

    prefill, decode = pair(fenced)
    request = Request(OWN, prefill.run(OWN, ASKS))
    with slow_reads():
        decode.begin(request)
        decode.step([])
        decode._ended.add(request.request_id)
        decode.step([])
    come(decode, request)
    assert decode.scheduler._kvfence_scheduler._read == set()


def going(engine: Any, *prompts: list[int]) -> list[Any]:
    """Begin requests that go on after their first pass."""
    from engines import Request

    requests = [Request(tokens, None, max_tokens=6) for tokens in prompts]
    for request in requests:
        engine.begin(request)
    return requests


def grant_anew(engine: Any, request: Any, place: int) -> None:
    """Give a block of a running request to somebody else."""
    lost = engine._tables[request.request_id][place]
    engine.pool.free_blocks([lost])
    assert engine.pool.get_new_blocks(1) == [lost]


def test_tables_that_hold_go_on(fenced: Maker) -> None:
    """Requests that grow beside each other are answered, and nothing is refused."""
    decode = fenced("decode")
    requests = going(decode, OWN[:8], VICTIM[:7])
    for _ in range(6):
        decode.step([])
    assert [decode.answers[each.request_id] for each in requests] == [OWN[:8], VICTIM[:7]]
    assert refusals(decode) == []


def test_a_block_that_grows_into_a_table_and_is_nobodys_fails_the_request(
    fenced: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM passes over a bad block from which nothing was computed: the last block before it is named too."""
    decode = fenced("decode")
    (request,) = going(decode, OWN[:8])
    grow = decode._grow

    def freed(request: Any) -> Any:
        blocks = grow(request)
        decode.pool.free_blocks([decode.pool.blocks[block] for block in blocks])
        return blocks

    monkeypatch.setattr(decode, "_grow", freed)
    decode.step([])
    assert decode.answers[request.request_id] is None


def test_a_pass_that_writes_into_anothers_block_fails_both(fenced: Maker) -> None:
    """The block's new holder has the right table, but what it reads there may be the other's."""
    decode = fenced("decode")
    first, second = going(decode, OWN[:8], VICTIM[:8])
    decode.pool.free_blocks(decode._tables[first.request_id][2:])
    decode.step([])
    assert decode._tables == {}
    assert [decode.answers[each.request_id] for each in (first, second)] == [None, None]


def test_a_broken_table_of_a_prompts_first_pass_ends_the_engine(fenced: Maker) -> None:
    """Nothing was computed by which vLLM could fail it."""
    from engines import Request

    decode = fenced("decode")
    request = Request(OWN, None)
    decode._tables[request.request_id] = decode.pool.get_new_blocks(3)
    decode.pool.free_blocks(decode._tables[request.request_id][1:2])
    with pytest.raises(InvariantBroken, match="table does not hold"):
        decode.step([request])
    assert decode.answers == {}


@pytest.mark.parametrize("place", range(3))
def test_a_broken_table_ends_an_engine_that_computes_again_in_the_same_table(fenced: Maker, place: int) -> None:
    """``recompute`` would let a running request write into blocks that are another's."""
    decode = fenced("decode", policy="recompute")
    (request,) = going(decode, OWN)
    grant_anew(decode, request, place)
    with pytest.raises(InvariantBroken, match="table does not hold"):
        decode.step([])
    assert decode.answers == {}


@pytest.mark.parametrize("place", range(3))
def test_a_broken_table_fails_the_request_at_any_place(fenced: Maker, place: int) -> None:
    """A block of a running request is another's: no further token of it leaves, and the engine goes on."""
    decode = fenced("decode")
    (request,) = going(decode, OWN)
    grant_anew(decode, request, place)
    decode.step([])
    assert decode.answers[request.request_id] is None
    assert decode.answer(VICTIM) == VICTIM


def promised(prefill: Any, blocks: Any, tags: Any, params: Any) -> dict[str, Any]:
    """End a request whose blocks were digested in this use; give what is sent."""
    fence = prefill.scheduler._kvfence_scheduler
    outgoing = _Outgoing(b"code", 4, None, blocks, tags)
    sent = {"do_remote_prefill": True, "remote_num_tokens": 4, **params}
    fence._prefill._outgoing["r"] = outgoing
    fence.ended("r", sent)
    report = Report()
    report.sealed["r"] = {0: b"d" * 16 * sum(map(len, blocks))}
    fence.outcome(report, (), ())
    return sent


def test_a_block_is_known_by_its_group_and_number(fenced: Maker) -> None:
    """Block 1 of one group is not block 1 of another: such a hand-off is not promised, and the engine goes on."""
    for sent, holds in (([[1], [2]], True), ([[2], [1]], False)):
        prefill = fenced("prefill")
        assert (FIELD in promised(prefill, ((1,), (2,)), {(0, 1): 0, (1, 2): 0}, {"remote_block_ids": sent})) is holds
        assert refusals(prefill) == ([] if holds else ["stamp-at-adopt"])


def test_a_block_granted_anew_after_its_digest_is_not_promised(fenced: Maker) -> None:
    """Its tag at the promise is not the one that it was digested under."""
    prefill = fenced("prefill")
    (block,) = (each.block_id for each in prefill.pool.get_new_blocks(1))
    (tag,) = prefill.scheduler._kvfence_scheduler.ledger.serials([block])
    params = {"remote_block_ids": [[block]]}
    assert FIELD in promised(prefill, ((block,),), {(0, block): tag}, params)
    prefill.pool.free_blocks([prefill.pool.blocks[block]])
    prefill.pool.get_new_blocks(1)
    assert FIELD not in promised(prefill, ((block,),), {(0, block): tag}, params)
    assert refusals(prefill) == ["stamp-at-adopt"]
