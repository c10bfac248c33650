"""The gateway before an SGLang pair; each guarantee once more with its guard away."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.limits import Limits
from kvfence.core.request import Request
from kvfence.core.settings import Role
from kvfence.engines.dialect import Call, Order, Pair, Said, Spot
from kvfence.engines.fleet import MISSED_MAX, Fleet, Looking, Sample, Worker
from kvfence.engines.handoff import GONE, Handoff, Listener, Outcome
from kvfence.engines.measured import Measured
from kvfence.engines.sglang import SglangDialect
from kvfence.protocol.messages import EndReason
from tests.integration.engines.fakes import LEAK, REFUSAL, Script
from tests.integration.engines.site import Build, complete, leave_when, read_all, request_of, standing

LONG = "translate: apple river!!"
"""24 tokens."""


def small_prefill(*, says: int) -> Script:
    """Prefill that takes 17 tokens and says another limit: it was measured before a restart."""
    script = Script("prefill", pool=24, limit=18)
    script.pool, script.says_limit = 4096, says
    return script


async def test_an_answer_comes_from_both_legs_in_one_room(prefill: Script, decode: Script) -> None:
    """Whole and streamed; host, port, room and prompt are the same on both legs, and prefill's cached tokens count."""
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        whole, streamed = await complete(site), await complete(site, stream=True)
        metrics = (await site.client.get("/metrics")).text
    assert whole.json()["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "text": "good",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert whole.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert [letter for letter in "good" if f'"text":"{letter}"' not in streamed.text] == []
    assert streamed.text.endswith("data: [DONE]\n\n")
    asked, told = prefill.bodies[0], decode.bodies[0]
    assert {**asked, "stream": True} == told
    assert (asked["bootstrap_host"], asked["bootstrap_port"]) == ("127.0.0.1", 38998)
    assert prefill.bodies[0]["bootstrap_room"] != prefill.bodies[1]["bootstrap_room"]
    assert 'kvfence_handoffs_total{outcome="stop"} 2.0' in metrics
    assert site.lines()[0]["prefill"] == "prefill-0"


async def test_log_probabilities_come_with_their_tokens(prefill: Script, decode: Script) -> None:
    """One for each token, however many the engine repeats with every event."""
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        answer = (await complete(site, logprobs=0)).json()
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-0.5] * 5


# ---- the fingerprint: prefill counts 1 token of 24


class Trusting(SglangDialect):
    """The guard away: prefill's count is not looked at."""

    def read_prefill(self, body: bytes) -> Said:
        said = super().read_prefill(body)
        return Said(len(LONG), said.first_token, said.num_cached)


def leaking(*, says: int = 4000) -> tuple[Script, Script]:
    """A pair as 0.5.19 is: prefill refuses without saying so, and decode reads what others left."""
    prefill, decode = small_prefill(says=says), Script("decode")
    prefill.silent_refusal, prefill.tokens, decode.tokens = True, LEAK, LEAK
    return prefill, decode


async def test_an_answer_of_which_prefill_saw_one_token_never_leaves() -> None:
    """Prefill's body counts 1 of 24: the client gets an error, streamed or not, and nothing of the text."""
    prefill, decode = leaking()
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        answers = [await complete(site, LONG), await complete(site, LONG, stream=True)]
        metrics = (await site.client.get("/metrics")).text
    assert [answer.status_code for answer in answers] == [500, 500]
    assert {answer.json()["error"]["code"] for answer in answers} == {"kv_integrity"}
    assert not any("M" in answer.json()["error"]["message"][:1] for answer in answers)
    assert 'kvfence_guard_decisions_total{answer="refuse",guard="count-matches",place="gateway"} 2.0' in metrics
    assert len(decode.bodies) == 2, "it was not asked a second time"


async def test_without_the_comparison_it_does() -> None:
    """Decode's body alone shows nothing: it counts all 24."""
    prefill, decode = leaking()
    async with standing(Build([prefill], [decode], Trusting())) as site:
        answer = await complete(site, LONG)
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "MARIA")


async def test_decode_that_counts_another_prompt_is_not_heard(prefill: Script, decode: Script) -> None:
    """Also where prefill's count is right."""
    decode.count = 4
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        assert await read_all(site, request_of()) == (b"", EndReason.COUNT_MISMATCH)


async def test_decode_that_begins_with_another_token_is_not_heard(prefill: Script, decode: Script) -> None:
    """Prefill chose the first token: another one belongs to another hand-off."""
    decode.tokens = LEAK
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        assert await read_all(site, request_of()) == (b"", EndReason.STAMP_MISMATCH)


# ---- admission


class ByFlags(Fleet):
    """The guard away: what clients are told of the context is taken for the limit."""

    def _smallest(self, role: Role) -> Measured:
        return Measured(role, "smol", "", 1, 8192, 8191, 8192)


async def test_what_prefill_would_refuse_is_refused_before_it_is_asked() -> None:
    """By the limit that its scheduler computed, with the sum; neither engine hears of it."""
    prefill, decode = Script("prefill", pool=24, limit=18), Script("decode")
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        answer = await complete(site, LONG)
        assert (await complete(site, LONG[:17], max_tokens=2)).status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "prefill prompt tokens: 24 of 17, does not fit" in answer.json()["error"]["message"]
    assert len(prefill.bodies) == len(decode.bodies) == 1


async def test_by_the_context_length_it_is_asked_all_the_same() -> None:
    """The pool is smaller than what the flags say."""
    prefill, decode = Script("prefill", pool=24, limit=18), Script("decode")
    async with standing(Build([prefill], [decode], SglangDialect(), fleets=ByFlags)) as site:
        await complete(site, LONG)
    assert len(prefill.bodies) == 1


async def test_a_prompt_for_which_decode_would_wait_for_ever_is_refused(prefill: Script) -> None:
    """Decode wants 64 tokens free behind the prompt, and neither takes nor refuses what leaves fewer."""
    decode = Script("decode", pool=80, limit=74)
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        answer = await complete(site, LONG)
    assert "decode pool tokens: 88 of 80, does not fit" in answer.json()["error"]["message"]


# ---- refusals


class Patient(Handoff):
    """The guard away: decode's leg is waited for first, as the engine's own router does."""

    async def _at_once(self, pair: Pair, order: Order, listener: Listener) -> Outcome:
        decode = asyncio.create_task(self._listen(pair, order, None, listener))
        prefill = asyncio.create_task(self._ask(self._dialect.prefill_call(pair, order)))
        try:
            await decode
            return await self._follow(decode, pair)
        finally:
            for task in (prefill, decode):
                task.cancel()


async def test_prefills_refusal_is_the_clients_answer_at_once() -> None:
    """With its status and its words, while decode still waits; decode's leg is ended: it gives its pages back."""
    prefill, decode = small_prefill(says=4000), Script("decode")
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        answer = await complete(site, LONG, stream=True)
        async with asyncio.timeout(5):
            await decode.closing.wait()
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, REFUSAL)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert site.lines()[0]["reason"] == "refused_at_intake"
    assert REFUSAL not in site.log.getvalue()


async def test_whoever_waits_for_decode_first_waits_in_vain() -> None:
    """Decode is told by nobody: nothing comes until the deadline."""
    prefill, decode = small_prefill(says=4000), Script("decode")
    async with standing(Build([prefill], [decode], SglangDialect(), Patient)) as site:
        assert await read_all(site, request_of(LONG, deadline_s=0.5)) == (b"", EndReason.DEADLINE)
    assert prefill.answered == 1


# ---- leaving


class Hasty(Handoff):
    """The guard away: whoever leaves ends both legs at once."""

    async def run(self, pair: Pair, order: Order, tell: object) -> Outcome:
        running = asyncio.create_task(super().run(pair, order, tell))  # type: ignore[arg-type]
        leaving = asyncio.create_task(self._left.wait())
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return Outcome(GONE)


async def test_a_client_that_leaves_ends_no_leg_before_the_transfer_has_settled(
    prefill: Script, decode: Script
) -> None:
    """Prefill may be writing into decode's pages: both legs stay until it has answered, then decode's is ended."""
    prefill.before_answer.clear()
    decode.before_end.clear()
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        await leave_when(site, request_of(), prefill.asked)
        async with asyncio.timeout(5):
            await decode.asked.wait()
        assert (prefill.closed, decode.closed) == ([], [])
        prefill.before_answer.set()
        async with asyncio.timeout(5):
            await decode.closing.wait()
    assert (prefill.closed, decode.closed) == ([], ["settled"])
    assert (prefill.course, decode.course) == ([], ["abort True", "closed"]), (
        "a closed stream alone is generated to its end"
    )


class Mute(SglangDialect):
    """The guard away: a leg is ended by closing its connection, and by nothing else."""

    def abort_call(self, spot: Spot, order: Order) -> Call | None:
        return None


async def test_a_leg_that_is_closed_without_a_word_generates_on(prefill: Script, decode: Script) -> None:
    """Nobody reads what decode goes on to write, and its pages stay taken until the last token."""
    decode.before_end.clear()
    async with standing(Build([prefill], [decode], Mute())) as site:
        await leave_when(site, request_of(), decode.asked)
        async with asyncio.timeout(5):
            await decode.closing.wait()
    assert decode.course == ["closed", "generates on"]


async def test_without_waiting_a_leg_is_ended_while_pages_move(prefill: Script, decode: Script) -> None:
    """Decode frees pages into which prefill still writes."""
    prefill.before_answer.clear()
    async with standing(Build([prefill], [decode], SglangDialect(), Hasty)) as site:
        await leave_when(site, request_of(), decode.asked)
        async with asyncio.timeout(5):
            await decode.closing.wait()
    assert decode.closed == ["in transfer"]


async def test_what_a_client_left_counts_until_it_has_settled(prefill: Script, decode: Script) -> None:
    """It fills its tenant's queue, or leaving would be a way round the bound."""
    prefill.before_answer.clear()
    limits = Limits(queue_tenant_max=1)
    async with standing(Build([prefill], [decode], SglangDialect(), limits=limits)) as site:
        await leave_when(site, request_of(), decode.asked)
        assert await read_all(site, request_of(name="next")) == (b"", EndReason.QUEUE_FULL)
        prefill.before_answer.set()
        await site.dispatcher.drain(5)


async def test_the_deadline_waits_for_nothing(prefill: Script, decode: Script) -> None:
    """It ends both legs, settled or not; the engines' own release is what is left then."""
    prefill.before_answer.clear()
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        assert await read_all(site, request_of(deadline_s=0.3)) == (b"", EndReason.DEADLINE)
        async with asyncio.timeout(5):
            await prefill.closing.wait()


# ---- elsewhere


async def test_a_worker_that_broke_is_asked_no_more_and_another_pair_is(prefill: Script, decode: Script) -> None:
    """Nothing had left: the client sees one whole answer. What decode waited for there is left to end by itself."""
    broken = Script("prefill", pool=8192)
    broken.status, broken.words = 500, "a secret of the engine"
    async with standing(Build([broken, prefill], [decode, Script("decode")], SglangDialect())) as site:
        answer = await complete(site)
    line = site.lines()[0]
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "good")
    assert (len(broken.bodies), len(prefill.bodies)) == (1, 1)
    assert (line["attempts"], line["prefill"]) == (2, "prefill-1")


async def test_where_there_is_no_other_pair_the_client_is_told(prefill: Script, decode: Script) -> None:
    """In our words: an engine's account of its own failure is not for clients."""
    prefill.status, prefill.words = 500, "a secret of the engine"
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        answer = await complete(site)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "transfer_failed")
    assert "secret" not in answer.text
    assert len(prefill.bodies) == 1


async def test_after_the_first_token_no_other_pair_feeds_the_stream(prefill: Script) -> None:
    """The stream ends with an error event, and nothing is asked a second time."""
    cut, spare = Script("decode", pool=8192), Script("decode")
    cut.cut_after = 2
    async with standing(Build([prefill], [cut, spare], SglangDialect())) as site:
        answer = await complete(site, stream=True)
    assert answer.text.index('"text":"g"') < answer.text.index('"text":"o"') < answer.text.index('{"error":')
    assert "[DONE]" not in answer.text
    assert spare.bodies == []


async def test_a_worker_that_is_gone_gets_nothing_until_it_was_looked_at(prefill: Script, decode: Script) -> None:
    """Its first request moves elsewhere, later ones are not offered to it."""
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        gone = site.dispatcher.fleet._workers["prefill-0"]  # type: ignore[index]
        gone.url = "http://127.0.0.1:9"
        assert (await complete(site)).json()["error"]["code"] == "worker_lost"
        health = (await site.client.get("/health")).json()
        assert (await complete(site)).json()["error"]["code"] == "no_worker"
    assert {each["worker"]: each["state"] for each in health["workers"]}["prefill-0"] == "did not answer a request"


async def test_whoever_waits_for_a_worker_that_says_nothing_is_told(prefill: Script, decode: Script) -> None:
    """After two looks without an answer, long before the deadline; the legs are left to settle, and count as open."""
    prefill.before_answer.clear()
    decode.before_end.clear()
    looking = Looking(every_s=0.05, again_s=0.05, timeout_s=0.3)
    build = Build([prefill], [decode], SglangDialect(), limits=Limits(queue_tenant_max=1), looking=looking)
    async with standing(build) as site:
        asked = asyncio.create_task(read_all(site, request_of()))
        async with asyncio.timeout(10):
            await decode.asked.wait()
            prefill.before_look.clear()
            assert await asked == (b"", EndReason.WORKER_LOST)
            assert (prefill.closed, decode.closed) == ([], [])
            prefill.before_look.set()
            answer = b"", EndReason.NO_WORKER
            while answer[1] is EndReason.NO_WORKER:
                await asyncio.sleep(0)
                answer = await read_all(site, request_of(name="next"))
            assert answer == (b"", EndReason.QUEUE_FULL)
        prefill.before_answer.set()
        async with asyncio.timeout(10):
            await decode.closing.wait()
        await site.dispatcher.drain(5)
    assert decode.closed == ["settled"]
    assert site.dispatcher.outcomes["worker_lost"] == 1


class Hopeful(Fleet):
    """The guard away: who waits for a worker is told of no look that it did not answer. ``gone``: many were not."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gone = asyncio.Event()

    @contextmanager
    def holding(self, pair: Pair, request: Request) -> Iterator[asyncio.Event]:
        with super().holding(pair, request):
            yield asyncio.Event()

    async def _look(self, worker: Worker) -> None:
        await super()._look(worker)
        if worker.num_missed > MISSED_MAX:
            self.gone.set()


async def test_without_the_looks_whoever_waits_is_told_nothing(prefill: Script, decode: Script) -> None:
    """The worker is known to be gone, and its request is waited for until the deadline."""
    prefill.before_answer.clear()
    looking = Looking(every_s=0.05, again_s=0.05, timeout_s=0.3)
    build = Build([prefill], [decode], SglangDialect(), fleets=Hopeful, looking=looking)
    async with standing(build) as site, asyncio.timeout(15):
        asked = asyncio.create_task(read_all(site, request_of()))
        await decode.asked.wait()
        prefill.before_look.clear()
        assert isinstance(site.dispatcher.fleet, Hopeful)
        await site.dispatcher.fleet.gone.wait()
        assert not asked.done()
        prefill.before_look.set()
        prefill.before_answer.set()
        assert await asked == (b"good", EndReason.STOP)


async def test_a_url_of_the_other_role_gets_nothing(decode: Script) -> None:
    """A decode worker named as prefill is said to be one, and nothing is admitted."""
    async with standing(Build([Script("decode")], [decode], SglangDialect())) as site:
        problems = site.dispatcher.fleet.problems()
        with pytest.raises(RemoteProtocolError, match="no prefill worker was measured"):
            _ = site.dispatcher.capacity
        answer = await complete(site)
    assert "its --disaggregation-mode is decode, not prefill" in problems[0]
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")


async def test_a_worker_with_another_tokenizer_gets_nothing(prefill: Script, decode: Script) -> None:
    """It would read other words; one that cannot say how it reads is taken."""
    decode.reads = [1, 2]
    for reads, problem in (([1, 2], []), ([1, 3], ["its tokenizer is not that of --model"]), (None, [])):
        prefill.reads = reads
        build = Build([prefill], [decode], SglangDialect(), sample=Sample("text", (1, 2)))
        async with standing(build) as site:
            found = site.dispatcher.fleet.problems()
        assert [each.partition(": ")[2].partition(":")[0] for each in found] == problem


# ---- tenants


async def test_what_a_client_may_not_set_never_reaches_the_engines(prefill: Script, decode: Script) -> None:
    """Rooms, hosts and keys of the cache are ours; the salt is the tenant's, the same on both legs."""
    names = {"bootstrap_host": "10.0.0.9", "bootstrap_room": 7, "extra_key": "bob", "rid": "bob", "session_params": {}}
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        await complete(site, **names)
        for number, tenant in enumerate(("ada", "ada", "bob")):
            await read_all(site, request_of(name=f"r{number}", tenant=tenant))
    first = prefill.bodies[0]
    assert first["bootstrap_host"] == "127.0.0.1"
    assert "session_params" not in first
    assert not {7, "bob"} & {first["bootstrap_room"], first["extra_key"], first["rid"]}
    salts = [body["extra_key"] for body in prefill.bodies]
    assert salts == [body["extra_key"] for body in decode.bodies]
    assert len(set(salts)) == 3, "this gateway's, ada's twice, bob's"
    assert salts[1] == salts[2]


async def test_a_schema_is_given_to_the_engine_as_it_was_asked_for(prefill: Script, decode: Script) -> None:
    """Without what our own grammar library writes beside it."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with standing(Build([prefill], [decode], SglangDialect())) as site:
        await complete(site, response_format=asked)
    given = httpx.Response(200, content=prefill.bodies[0]["sampling_params"]["json_schema"]).json()
    assert given == schema
