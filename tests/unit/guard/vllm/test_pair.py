"""Hand-offs between two engines whose connector is guarded, and the same between engines as shipped."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvfence.guard.key import Key
from kvfence.guard.vllm.manifest import seal, unseal

Maker = Callable[..., Any]
VICTIM = [*range(100, 110)]
OWN = [*range(200, 210)]
ASKS = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None, "remote_host": None}


def pair(make: Maker, **more: Any) -> tuple[Any, Any]:
    """Make both roles."""
    return make("prefill", **more), make("decode", **more)


def counts(engine: Any) -> dict[str, int]:
    """Give what an engine's guard has counted since the last time."""
    stats = engine.scheduler.get_kv_connector_stats()
    return dict(stats.counts()) if stats is not None else {}


def refusals(engine: Any) -> list[str]:
    """Give the guards that refused a hand-off since the last time; holding its blocks is what follows."""
    found = {name: number for name, number in counts(engine).items() if name.endswith((" refuse", " observed"))}
    names = [name.split(" ")[1] for name, number in found.items() for _ in range(number)]
    return [name for name in names if name != "drain-or-fence"]


def short_count(prefill: Any, decode: Any) -> Any:
    """Prefill computed a placeholder of one token."""
    return decode.answer(OWN[:3], prefill.run(OWN[:1], ASKS))


def stale(prefill: Any, decode: Any) -> Any:
    """The lease ended and another tenant has the blocks."""
    params = prefill.run(OWN, ASKS)
    prefill.expire()
    prefill.run(VICTIM, ASKS)
    return decode.answer(OWN, params)


def forged(prefill: Any, decode: Any) -> Any:
    """Another's hand-off."""
    return decode.answer(OWN, prefill.run(VICTIM, ASKS))


def too_many(prefill: Any, decode: Any) -> Any:
    """Prefill's prompt is a block longer."""
    return decode.answer(OWN, prefill.run([*OWN, *range(210, 214)], ASKS))


def too_few(prefill: Any, decode: Any) -> Any:
    """Prefill's prompt is a block shorter."""
    return decode.answer(OWN, prefill.run(OWN[:4], ASKS))


def salted(prefill: Any, decode: Any) -> Any:
    """Decode's request carries another salt."""
    return decode.answer(OWN, prefill.run(OWN, ASKS, salt="a"), salt="b")


def edited(prefill: Any, decode: Any) -> Any:
    """A character of the seal was changed on the way."""
    params = prefill.run(OWN, ASKS)
    text = params["kvfence"]
    return decode.answer(OWN, {**params, "kvfence": text[:60] + ("A" if text[60] != "A" else "B") + text[61:]})


def unsealed(prefill: Any, decode: Any) -> Any:
    """Somebody writes a hand-off by hand, with the address of his own; prefill has computed the prompt."""
    prefill.run(OWN, ASKS)
    params = {"do_remote_prefill": True, "remote_engine_id": prefill.engine_id, "remote_host": "10.1.2.3"}
    params |= {"remote_request_id": "r", "remote_port": 1, "remote_block_ids": [[1, 2, 3]]}
    return decode.answer(OWN, params)


BAD = [short_count, stale, forged, too_many, too_few, salted, edited, unsealed]


def test_an_honest_hand_off_is_taken_and_verified(fenced: Maker) -> None:
    """Decode answers from what prefill computed, computes nothing itself and refuses nothing."""
    prefill, decode = pair(fenced)
    for number in range(20):
        tokens = [*range(1000 + 20 * number, 1000 + 20 * number + 3 + number % 11)]
        assert decode.answer(tokens, prefill.run(tokens, ASKS)) == tokens
        prefill.expire()
    assert decode.num_computed == 0
    found = counts(decode)
    assert found["decode digest-matches pass"] == 20
    assert not [name for name in found if not name.endswith(" pass")]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_hand_off_fails_and_the_engine_goes_on(fenced: Maker, case: Callable[..., Any]) -> None:
    """The request fails as a request; nothing that is not its own was computed on, and honest ones are answered."""
    prefill, decode = pair(fenced)
    assert case(prefill, decode) is None
    assert len(refusals(decode)) == 1
    assert decode.answer(VICTIM, prefill.run(VICTIM, ASKS)) == VICTIM


@pytest.mark.parametrize("case", BAD)
def test_a_bad_hand_off_is_computed_here_where_the_policy_says_so(fenced: Maker, case: Callable[..., Any]) -> None:
    """With vLLM's own policy ``recompute`` the answer is right."""
    prefill, decode = pair(fenced, policy="recompute")
    answer = case(prefill, decode)
    assert answer == (OWN[:3] if case is short_count else OWN)


@pytest.mark.parametrize("case", [short_count, stale, forged, too_many])
def test_as_shipped_each_is_answered_from_what_is_not_its_own(stock: Maker, case: Callable[..., Any]) -> None:
    """Without the guard the same hand-offs are answered from another's blocks, or from what nobody wrote."""
    answer = case(*pair(stock))
    assert answer is not None
    assert answer not in (OWN, OWN[:3])


def test_as_shipped_a_block_too_few_ends_the_engine(stock: Maker) -> None:
    """An assertion, outside any request."""
    with pytest.raises(AssertionError, match="gone"):
        too_few(*pair(stock))


@pytest.mark.parametrize("case", [forged, stale, short_count, salted])
def test_observe_counts_what_it_would_refuse_and_answers_as_shipped(fenced: Maker, case: Callable[..., Any]) -> None:
    """Nothing that vLLM does is changed."""
    prefill, decode = pair(fenced, mode="observe")
    assert case(prefill, decode) is not None
    assert len(refusals(decode)) == 1


def test_a_hand_off_is_good_once(fenced: Maker) -> None:
    """The second use is refused, whatever its request is called."""
    prefill, decode = pair(fenced)
    params = prefill.run(OWN, ASKS)
    assert decode.answer(OWN, params) == OWN
    assert decode.answer(OWN, params) is None
    assert counts(decode)["decode attempt-is-current refuse"] == 1


def test_how_much_prefill_computed_is_what_it_was_asked(fenced: Maker) -> None:
    """Under a right seal too: a placeholder is refused by its count; the last token may be left out."""
    key = Key(b"k" * 32)
    prefill, decode = pair(fenced)
    for computed, answer in ((1, None), (8, None), (9, OWN), (10, OWN), (11, None)):
        params = prefill.run(OWN, ASKS)
        manifest = unseal(key, params["kvfence"])
        assert manifest is not None
        assert manifest.computed_tokens == len(OWN)
        changed = msgspec.structs.replace(manifest, computed_tokens=computed)
        assert decode.answer(OWN, {**params, "kvfence": seal(key, changed)}) == answer, computed
        assert refusals(decode) == ([] if answer else ["count-matches"]), computed
        prefill.expire()


def test_a_short_computation_of_one_block_is_refused(fenced: Maker) -> None:
    """Asked for three tokens, prefill computed one: the block counts agree all the same."""
    key = Key(b"k" * 32)
    prefill, decode = pair(fenced)
    params = prefill.run(OWN[:3], ASKS)
    manifest = unseal(key, params["kvfence"])
    assert manifest is not None
    short = seal(key, msgspec.structs.replace(manifest, computed_tokens=1))
    assert decode.answer(OWN[:3], {**params, "kvfence": short}) is None
    assert refusals(decode) == ["count-matches"]


def test_a_refused_hand_off_does_not_reach_the_prefix_cache(fenced: Maker, stock: Maker) -> None:
    """A later request which begins alike is answered from its own tokens; as shipped it has the other's."""
    prefill, decode = pair(fenced)
    forged(prefill, decode)
    assert decode.answer(OWN) == OWN
    prefill, decode = pair(stock)
    forged(prefill, decode)
    assert decode.answer(OWN) != OWN


def test_no_address_is_taken_from_a_request(fenced: Maker, stock: Maker) -> None:
    """Without a seal nothing is reached; as shipped the address is reached before anything is looked at."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import Wire

    Wire.reached.clear()
    unsealed(*pair(fenced))
    assert Wire.reached == []
    unsealed(*pair(stock))
    assert Wire.reached == [("10.1.2.3", 1)]


def test_what_vllm_tells_prefill_of_a_lost_request_goes_to_no_address_of_a_clients(fenced: Maker) -> None:
    """vLLM makes a second request of one that failed, to free what it had: it is neither followed nor counted."""
    from engines import Request
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import Wire

    Wire.reached.clear()
    decode = fenced("decode")
    request = Request(OWN, {"do_remote_prefill": True, "remote_host": "10.1.2.3", "remote_port": 1})
    request.abort_immediately = True
    decode.scheduler.on_new_request(request)
    assert Wire.reached == []
    assert refusals(decode) == []


def test_prefill_takes_no_address_either(fenced: Maker) -> None:
    """Of what a client sends to prefill only the wish for a hand-off is left."""
    from engines import Request

    prefill = fenced("prefill")
    request = Request(OWN, {**ASKS, "remote_host": "10.1.2.3", "remote_block_ids": [[1]], "remote_engine_id": "x"})
    prefill.begin(request)
    assert request.kv_transfer_params == {"do_remote_decode": True, "do_remote_prefill": False}


def test_a_decode_without_the_guard_can_read_nothing(fenced: Maker, stock: Maker) -> None:
    """In ``enforce`` all stands inside the seal: a decode as shipped computes the prompt itself."""
    prefill, decode = fenced("prefill"), stock("decode")
    params = prefill.run(OWN, ASKS)
    assert set(params) == {"do_remote_prefill", "do_remote_decode", "kvfence"}
    assert decode.answer(OWN, params) == OWN
    assert decode.num_computed == 1


def test_a_prefill_of_another_context_is_said_once(fenced: Maker) -> None:
    """Its hand-offs are taken; what it cannot hold it refuses itself. Another life of it is another prefill."""
    decode = fenced("decode")
    for _ in range(2):
        prefill = fenced("prefill", context=32)
        for tokens in (OWN, VICTIM):
            assert decode.answer(tokens, prefill.run(tokens, ASKS)) == tokens
        assert counts(decode)["decode fits warn"] == 1
    assert decode.answer(OWN, fenced("prefill").run(OWN, ASKS)) == OWN
    assert "decode fits warn" not in counts(decode)


def test_a_prefill_without_the_guard_is_not_read(fenced: Maker, stock: Maker) -> None:
    """What nobody has promised is refused."""
    prefill, decode = stock("prefill"), fenced("decode")
    assert decode.answer(OWN, prefill.run(OWN, ASKS)) is None


def test_another_key_is_another_prefill(fenced: Maker) -> None:
    """A promise by another key is none."""
    prefill, decode = fenced("prefill"), fenced("decode", key="z" * 32)
    assert decode.answer(OWN, prefill.run(OWN, ASKS)) is None


def test_the_seal_holds_no_token(fenced: Maker) -> None:
    """Neither token ids nor their plain digest travel through the client."""
    import base64

    tokens = [47_001, 47_002, 47_003, 47_004]
    body = base64.b64decode(fenced("prefill").run(tokens, ASKS)["kvfence"])
    assert not any(token.to_bytes(2, order) in body for token in tokens for order in ("big", "little"))


def test_an_adapter_is_known_by_its_name(fenced: Maker) -> None:
    """Its number is a counter of each API server; another name is another prompt."""
    prefill, decode = pair(fenced)
    mine, same, other = (
        SimpleNamespace(lora_name=name, lora_int_id=number) for name, number in (("a", 1), ("a", 7), ("b", 1))
    )
    assert decode.answer(OWN, prefill.run(OWN, ASKS, lora=mine), lora=same) == OWN
    assert decode.answer(OWN, prefill.run(OWN, ASKS, lora=mine), lora=other) is None


def test_observing_no_block_is_made_zero(fenced: Maker) -> None:
    """Nothing that vLLM has in its caches is changed."""
    prefill = fenced("prefill", mode="observe")
    prefill.run(OWN, ASKS)
    assert {int(cache.array[3][0, 2, 0]) for cache in prefill.kv.values()} == {999}


def test_the_tail_behind_the_last_token_travels_as_zeros(fenced: Maker, stock: Maker) -> None:
    """What an earlier tenant left in the rest of the last block stays at prefill; as shipped it travels."""
    for make, left in ((fenced, 0), (stock, 101)):
        prefill, decode = pair(make)
        prefill.run([*range(100, 112)], ASKS)
        prefill.expire()
        tokens = [*range(300, 309)]
        decode.answer(tokens, prefill.run(tokens, ASKS))
        tails = {int(cache.array[block][0, 1, 0]) for cache in decode.kv.values() for block in (3,)}
        assert tails == {left}, make


def test_blocks_of_a_failed_read_stay_out_of_the_pool(fenced: Maker) -> None:
    """A read that failed may still land: its blocks are not given to anybody."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import Wire

    prefill, decode = pair(fenced)
    params = prefill.run(OWN, ASKS)
    Wire.fails = True
    try:
        assert decode.answer(OWN, params) is None
    finally:
        Wire.fails = False
    found = counts(decode)
    assert found["held"] == 3
    assert found["decode drain-or-fence refuse"] == 1
    assert [block.block_id for block in decode.pool.blocks if block.ref_cnt] == [1, 2, 3]
    assert decode.answer(VICTIM, prefill.run(VICTIM, ASKS)) == VICTIM
    assert [block.block_id for block in decode.pool.blocks if block.ref_cnt] == [1, 2, 3]


def test_blocks_of_a_refused_hand_off_come_back(fenced: Maker) -> None:
    """Nothing was read into them; where something was that nobody sent, they stay out."""
    for case in BAD:
        prefill, decode = pair(fenced)
        case(prefill, decode)
        held = [block.block_id for block in decode.pool.blocks if block.ref_cnt]
        assert held == ([1, 2, 3] if case is stale else []), case


def test_a_prefill_asked_for_more_than_a_token_promises_nothing(fenced: Maker) -> None:
    """Its last block is written after it was digested, so that there is nothing to promise."""
    prefill, decode = pair(fenced)
    params = prefill.run(OWN, ASKS)
    assert decode.answer(OWN, params) == OWN
    from engines import Request

    request = Request(OWN, dict(ASKS))
    fence = prefill.scheduler._kvfence_scheduler
    fence.comes(request)
    sent = {"do_remote_prefill": True, "remote_block_ids": [[1]]}
    fence.ended(request.request_id, sent)
    fence.outcome(None, (), ())
    assert sent == {"do_remote_prefill": False, "do_remote_decode": False}
    assert counts(prefill)["prefill stamp-at-adopt refuse"] == 1


def test_a_read_after_its_lease_is_counted_as_late_and_refuses_nobody(fenced: Maker) -> None:
    """NIXL says at prefill that a decode has read blocks whose lease was over: what they brought decode judges."""
    prefill, decode = pair(fenced)
    params = prefill.run(OWN, ASKS)
    prefill.worker._stats.data["num_notifications_after_expiry"] += [1, 1]
    prefill.worker.get_kv_connector_stats()
    prefill.step([])
    found = counts(prefill)
    assert found == {"prefill hold-source late": 2}
    assert decode.answer(OWN, params) == OWN


def test_a_release_that_shows_only_changed_tables_is_guarded(fenced: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.29 has a field where later ones have a method: hand-offs are verified, and a table is followed."""
    import vllm.v1.core.sched.output as output

    class Shown:
        block_ids: dict[str, Any]

        def __init__(self, tables: dict[str, Any]) -> None:
            self.block_ids = tables

    monkeypatch.setattr(output, "KVConnectorBlockState", Shown)
    prefill, decode = pair(fenced)
    assert decode.answer(OWN, prefill.run(OWN, ASKS)) == OWN
    assert forged(prefill, decode) is None
    fence = decode.scheduler._kvfence_scheduler
    fence.ledger.extend("running", (3, 4))
    tables = fence._tables_of(SimpleNamespace(kv_connector_block_state=Shown({}), num_scheduled_tokens={"running": 1}))
    assert (tables("running"), tables("preempted")) == (([3, 4],), None)
