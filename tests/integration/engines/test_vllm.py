"""The gateway before a vLLM pair; each guarantee once more with its guard away."""

import asyncio

from kvfence.core.settings import Role
from kvfence.engines.dialect import Order, Pair, Said
from kvfence.engines.fleet import Fleet
from kvfence.engines.handoff import GONE, Handoff, Listener, Outcome
from kvfence.engines.measured import Measured
from kvfence.engines.vllm import VllmDialect
from kvfence.protocol.messages import EndReason
from tests.integration.engines.fakes import LEAK, Script
from tests.integration.engines.site import Build, complete, leave_when, read_all, request_of, standing


async def test_decode_gets_what_prefills_connector_gave(prefill: Script, decode: Script) -> None:
    """Prefill is asked for one token, decode for the answer, both with the same prompt and salt."""
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        answer = (await complete(site)).json()
    assert answer["choices"][0]["text"] == "good"
    assert answer["usage"]["prompt_tokens"] == 5
    asked, told = prefill.bodies[0], decode.bodies[0]
    assert (asked["max_tokens"], asked["stream"], asked["kv_transfer_params"]["do_remote_decode"]) == (1, False, True)
    assert (told["max_tokens"], told["stream"]) == (8, True)
    assert told["kv_transfer_params"]["remote_request_id"] == "cmpl-1"
    assert (asked["prompt"], asked["cache_salt"]) == (told["prompt"], told["cache_salt"])


async def test_no_clients_transfer_parameters_reach_an_engine(prefill: Script, decode: Script) -> None:
    """Parameters that name another request's blocks would be answered with its text; the salt is the tenant's."""
    forged = {"do_remote_prefill": True, "remote_block_ids": [[3]], "remote_request_id": "of-bob", "remote_host": "x"}
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        await complete(site, kv_transfer_params=forged, cache_salt="bob", vllm_xargs={"a": 1})
        for number, tenant in enumerate(("ada", "ada", "bob")):
            await read_all(site, request_of(name=f"r{number}", tenant=tenant))
    bodies = [*prefill.bodies, *decode.bodies]
    assert "of-bob" not in {body["kv_transfer_params"].get("remote_request_id") for body in bodies}
    assert not any("vllm_xargs" in body for body in bodies)
    salts = [body["cache_salt"] for body in prefill.bodies]
    assert "bob" not in salts
    assert salts == [body["cache_salt"] for body in decode.bodies]
    assert (salts[1] == salts[2], len(set(salts))) == (True, 3)


async def test_where_prefill_gives_nothing_decode_computes_the_prompt(prefill: Script, decode: Script) -> None:
    """No hand-off is better than a guess at one."""
    prefill.gives_params = False
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        assert await read_all(site, request_of()) == (b"good", EndReason.STOP)
    assert "kv_transfer_params" not in decode.bodies[0]


# ---- counts


class Trusting(VllmDialect):
    """The guard away: whatever prefill counted, it is passed on."""

    def read_prefill(self, body: bytes) -> Said:
        said = super().read_prefill(body)
        return Said(len("hello"), None, 0, said.params)


async def test_pages_of_fewer_tokens_are_not_passed_on(prefill: Script, decode: Script) -> None:
    """Decode trusts its own count and would read what others left: it is not asked at all."""
    prefill.moved, decode.tokens = 1, LEAK
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        answer = await complete(site)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "kv_integrity")
    assert decode.bodies == []


async def test_without_the_comparison_they_are(prefill: Script, decode: Script) -> None:
    """Decode's own count is right, and its text is another tenant's."""
    prefill.moved, decode.tokens = 1, LEAK
    async with standing(Build([prefill], [decode], Trusting())) as site:
        answer = await complete(site)
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "MARIA")


async def test_the_last_tokens_own_slot_may_be_left_out(prefill: Script, decode: Script) -> None:
    """Decode computes the last token again."""
    prefill.moved = 4
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        assert await read_all(site, request_of()) == (b"good", EndReason.STOP)


async def test_decode_that_counts_another_prompt_is_not_heard(prefill: Script, decode: Script) -> None:
    """Also where prefill's count is right."""
    decode.count = 4
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        assert await read_all(site, request_of()) == (b"", EndReason.COUNT_MISMATCH)


# ---- admission


class ByDecode(Fleet):
    """The guard away: decode alone is looked at."""

    def _smallest(self, role: Role) -> Measured:
        return super()._smallest("decode")


async def test_the_smaller_context_of_the_two_counts() -> None:
    """The engines' handshake does not compare them."""
    prefill, decode = Script("prefill", limit=20), Script("decode", limit=64)
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        answer = await complete(site, "x" * 24)
    assert "prefill prompt tokens: 24 of 19, does not fit" in answer.json()["error"]["message"]
    assert prefill.bodies == []


async def test_by_decodes_alone_prefill_is_asked_for_what_it_cannot_hold() -> None:
    """A server in front of which only decode is measured."""
    prefill, decode = Script("prefill", limit=20), Script("decode", limit=64)
    async with standing(Build([prefill], [decode], VllmDialect(), fleets=ByDecode)) as site:
        await complete(site, "x" * 24)
    assert len(prefill.bodies) == 1


async def test_a_pool_below_the_context_counts(prefill: Script) -> None:
    """In whole pages, and without the one that the engine keeps for itself."""
    decode = Script("decode", pool=32, limit=64)
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        answer = await complete(site, "x" * 30)
    assert "decode pool tokens: 48 of 32, does not fit" in answer.json()["error"]["message"]


# ---- refused, failed, elsewhere


async def test_an_engines_refusal_is_the_clients_answer(prefill: Script, decode: Script) -> None:
    """Of either role, with its own status and words."""
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        decode.status, decode.words = 422, "min_tokens must not be above max_tokens."
        from_decode = await complete(site)
        prefill.status, prefill.words = 400, "This model does not support that."
        from_prefill = await complete(site)
    assert (from_decode.status_code, from_decode.json()["error"]["message"]) == (422, decode.words)
    assert (from_prefill.status_code, from_prefill.json()["error"]["message"]) == (400, prefill.words)


async def test_a_refused_hand_off_is_tried_on_another_pair(prefill: Script, decode: Script) -> None:
    """Decode's guard failed the receive: the request is computed anew elsewhere, and the client sees one answer."""
    refusing = Script("decode", pool=8192)
    refusing.status = 500
    async with standing(Build([prefill, Script("prefill")], [refusing, decode], VllmDialect())) as site:
        assert await read_all(site, request_of()) == (b"good", EndReason.STOP)
    assert (len(refusing.bodies), len(decode.bodies)) == (1, 1)
    params = [script.bodies[0]["kv_transfer_params"] for script in (refusing, decode)]
    assert params[0]["remote_port"] == params[1]["remote_port"], "each is what a prefill gave for that attempt"


async def test_with_one_pair_it_fails_in_our_words(prefill: Script, decode: Script) -> None:
    """The same pair is not asked again."""
    decode.status = 500
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        answer = await complete(site)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "transfer_failed")
    assert len(decode.bodies) == 1


async def test_a_stream_that_ends_without_saying_why_is_no_answer(prefill: Script, decode: Script) -> None:
    """Before the first token some releases answer 200 and then nothing."""
    decode.tokens = []
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        assert await read_all(site, request_of()) == (b"", EndReason.TRANSFER_FAILED)


# ---- leaving


class Hasty(Handoff):
    """The guard away: whoever leaves ends decode's leg at once."""

    async def _in_turn(self, pair: Pair, order: Order, listener: Listener) -> Outcome:
        running = asyncio.create_task(super()._in_turn(pair, order, listener))
        leaving = asyncio.create_task(self._left.wait())
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return Outcome(GONE)


async def test_a_client_that_leaves_ends_decode_only_when_it_has_begun(prefill: Script, decode: Script) -> None:
    """Until its first token decode may be fetching pages."""
    decode.before_answer.clear()
    decode.before_end.clear()
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        await leave_when(site, request_of(), decode.asked)
        assert decode.closed == []
        decode.before_answer.set()
        async with asyncio.timeout(5):
            await decode.closing.wait()
    assert decode.closed == ["settled"]


async def test_without_waiting_decode_is_ended_while_it_fetches(prefill: Script, decode: Script) -> None:
    """Its blocks would be free with a read into them under way."""
    decode.before_answer.clear()
    async with standing(Build([prefill], [decode], VllmDialect(), Hasty)) as site:
        await leave_when(site, request_of(), decode.asked)
        async with asyncio.timeout(5):
            await decode.closing.wait()
    assert decode.closed == ["in transfer"]


async def test_before_decode_was_asked_leaving_ends_prefill_at_once(prefill: Script, decode: Script) -> None:
    """Nobody knows of its pages yet."""
    prefill.before_answer.clear()
    async with standing(Build([prefill], [decode], VllmDialect())) as site:
        await leave_when(site, request_of(), prefill.asked)
        async with asyncio.timeout(5):
            await prefill.closing.wait()
    assert (prefill.closed, decode.bodies) == (["before transfer"], [])
