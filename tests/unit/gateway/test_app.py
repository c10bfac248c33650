import asyncio
import json
import threading

import pytest

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.request import TokenLogprob
from kvfence.gateway.elsewhere import NOT_SERVED
from kvfence.gateway.registry import load_keys
from kvfence.gateway.responses import finish_reason
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.unit.gateway.fakes import FakeGenerations, Running, chat, end, say

CHAT = "/v1/chat/completions"
MARKER = "ZEBRA-MARKER"


def events(text: str) -> list[str]:
    """Take a stream apart into the data of its events."""
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.removesuffix("\n\n").split("\n\n")]


async def test_usage_says_what_of_the_prompt_was_found():
    """Tokens that were not computed again are counted once, however many pieces the answer has."""
    running = Running(lambda _: [TokensOut((65,), num_cached=4), TokensOut((66,)), EndOut(EndReason.STOP)])
    async with running.client() as client:
        body = (await client.post(CHAT, json=chat("capital?"))).json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_a_chat_completion_has_openais_form():
    """A whole answer has the documented fields, our ids and the token counts."""
    running = Running(say("Paris"))
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("capital?"))
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    assert body["choices"][0]["message"] == {"content": "Paris", "role": "assistant", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == {
        "prompt_tokens": 14,
        "completion_tokens": 5,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_streamed_chat_has_openais_chunks():
    """The role first, then text, then the reason, then the counts that were asked for, then [DONE]."""
    running = Running(say("Hi"))
    async with running.client() as client:
        body = chat("x", stream=True, stream_options={"include_usage": True})
        response = await client.post(CHAT, json=body)
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    read = [json.loads(chunk) for chunk in chunks]
    assert [chunk["choices"][0]["delta"] for chunk in read[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "H"},
        {"content": "i"},
        {},
    ]
    assert read[-2]["choices"][0]["finish_reason"] == "stop"
    assert (read[-1]["choices"], read[-1]["usage"]["completion_tokens"]) == ([], 2)
    assert all(chunk["usage"] is None for chunk in read[:-1])
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_a_refusal_of_a_stream_is_a_status():
    """A stream that is refused before its first token is no 200 with an error behind it."""
    running = Running(end(EndReason.QUEUE_FULL, 2))
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x", stream=True))
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert response.json()["error"]["code"] == "queue_full"
    assert running.lines()[-1]["reason"] == "queue_full"


async def test_an_error_in_mid_stream_is_an_event_and_no_end():
    """After the first token an error is an event; there is no finish_reason and no [DONE]."""
    running = Running(lambda _: [TokensOut(tuple(b"half")), EndOut(EndReason.DIGEST_MISMATCH)])
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x", stream=True))
    *_, text, last = events(response.text)
    assert json.loads(text)["choices"][0]["delta"] == {"content": "half"}
    assert json.loads(last)["error"]["code"] == "kv_integrity"
    assert "[DONE]" not in response.text
    assert '"finish_reason":"' not in response.text


ERRORS = [reason for reason in EndReason if finish_reason(reason) is None]


@pytest.mark.parametrize("reason", ERRORS)
async def test_every_error_after_the_first_token_is_an_event_and_no_end(reason):
    """Whatever ends an answer early, and however many choices it has: an error event last, no [DONE] and no counts."""
    running = Running(lambda _: [TokensOut(tuple(b"half")), EndOut(reason)])
    async with running.client() as client:
        for fields in ({}, {"n": 3, "stream_options": {"include_usage": True}}):
            response = await client.post(CHAT, json=chat("x", stream=True, **fields))
            *before, last = [json.loads(event) for event in events(response.text)]
            assert set(last) == {"error"}
            assert last["error"]["message"]
            assert all(choice["finish_reason"] is None for chunk in before for choice in chunk["choices"])
            assert not any(chunk.get("usage") for chunk in before)
    assert (running.lines()[-1]["status"], running.lines()[-1]["reason"]) == (200, reason.value)


@pytest.mark.parametrize("reason", ERRORS)
async def test_every_error_before_the_first_token_is_a_status(reason):
    """One choice of several that is refused refuses all; what can be asked again says when."""
    running = Running(end(reason))
    async with running.client() as client:
        for fields in ({"stream": True}, {"n": 3}, {"n": 3, "stream": True}):
            response = await client.post(CHAT, json=chat("x", **fields))
            assert response.status_code >= 400
            assert (response.status_code in (429, 503)) == ("retry-after" in response.headers)
    assert running.generations.num_open == 0


async def test_choices_are_told_apart():
    """Each choice has its own text, end and log probabilities; a stop string ends one alone; tokens are summed."""
    texts = {"0": "one STOP more", "1": "two", "2": "three"}

    def script(request):
        text = texts[request.id.rpartition("-")[2] if "-" in request.id else "0"]
        said = [TokensOut((each,), (TokenLogprob(-0.5, [(each, -0.5), (65, -1.0)]),)) for each in text.encode()]
        return [*said, EndOut(EndReason.LENGTH)]

    running = Running(script)
    fields = {"n": 3, "stop": "STOP", "logprobs": True, "top_logprobs": 2}
    async with running.client() as client:
        whole = (await client.post(CHAT, json=chat("x", **fields))).json()
        stream = await client.post(CHAT, json=chat("x", **fields, stream=True))
    assert [(each["message"]["content"], each["finish_reason"]) for each in whole["choices"]] == [
        ("one ", "stop"),
        ("two", "length"),
        ("three", "length"),
    ]
    said = whole["choices"][1]["logprobs"]["content"]
    assert [each["token"] for each in said] == ["t", "w", "o"]
    assert said[0]["top_logprobs"][1] == {"token": "A", "logprob": -1.0, "bytes": [65]}
    assert whole["usage"]["completion_tokens"] == len("one STOP" + "two" + "three")
    joined, roles = ["", "", ""], []
    for event in events(stream.text)[:-1]:
        (choice,) = json.loads(event)["choices"]
        joined[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
    assert joined == ["one ", "two", "three"]
    assert sorted(roles) == [0, 1, 2]
    assert events(stream.text)[-1] == "[DONE]"


async def test_counts_with_every_chunk_for_those_who_ask():
    """continuous_usage_stats puts the counts so far into each chunk; it does nothing without include_usage."""
    running = Running(say("Hi"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x", stream=True, stream_options=options))
        alone = await client.post(CHAT, json=chat("x", stream=True, stream_options={"continuous_usage_stats": True}))
    read = [json.loads(event) for event in events(response.text)[:-1]]
    assert [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in read] == [None, 1, 2, 2, 2]
    assert not any("usage" in json.loads(event) for event in events(alone.text)[:-1])


async def test_calls_have_openais_form():
    """A call in the model's own way is a tool call, streamed and whole; its text is no content."""
    text = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "add"}}]
    running = Running(say(text))
    async with running.client() as client:
        whole = (await client.post(CHAT, json=chat("x", tools=tools))).json()["choices"][0]
        stream = await client.post(CHAT, json=chat("x", tools=tools, stream=True))
        none = (await client.post(CHAT, json=chat("x", tools=tools, tool_choice="none"))).json()["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"arguments": '{"x": 1}', "name": "add"})
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events(stream.text)[:-1]]
    (part,) = [part for delta in deltas for part in delta.get("tool_calls", [])]
    assert (part["index"], part["type"], part["function"]) == (0, "function", call["function"])
    assert not any(delta.get("content") for delta in deltas)
    assert (none["message"]["content"], none["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in none["message"]


async def test_a_tenant_beyond_its_quota_hears_when_to_ask_again(tmp_path):
    """429 with Retry-After and what is left; others go on, and unused tokens come back."""
    (tmp_path / "keys").write_text("sk-a acme tokens_per_minute=100\nsk-b other\nsk-c calm requests=2\n")
    running = Running(say("Hi"), load_keys(tmp_path / "keys"))
    async with running.client() as client:

        async def ask(key, **fields):
            return await client.post(CHAT, json=chat("x", **fields), headers={"authorization": f"Bearer {key}"})

        good = await ask("sk-a", max_tokens=80)
        again = await ask("sk-a", max_tokens=80)
        beyond = await ask("sk-a", max_tokens=99)
        other = await ask("sk-b", max_tokens=200)
        many = await ask("sk-c", n=3)
        few = await ask("sk-c", n=2)
    assert [each.status_code for each in (good, again, beyond, other, many, few)] == [200, 200, 429, 200, 400, 200]
    assert good.headers["x-ratelimit-remaining-tokens"] == str(100 - len("<user>x") - 80)
    assert again.headers["x-ratelimit-remaining-tokens"] == str(100 - 2 * len("<user>x") - 2 - 80)
    assert int(beyond.headers["retry-after"]) >= 1
    assert beyond.headers["x-ratelimit-limit-tokens"] == "100"
    assert beyond.json()["error"]["code"] == "rate_limit_exceeded"
    assert "x-ratelimit-limit-tokens" not in other.headers
    assert many.json()["error"]["param"] == "n"


async def test_a_tenants_bodies_wait_for_each_other_and_not_before_anothers(tmp_path):
    """Of a tenant that sends many costly bodies at once only one is in line before another tenant's."""
    (tmp_path / "keys").write_text("sk-a acme\nsk-b other\n")
    running = Running(say("Hi"), load_keys(tmp_path / "keys"))
    seen: list[str] = []
    begun, go_on, encode = threading.Event(), threading.Event(), running.tokenizer.encode

    def slow(text, *args, **kwargs):
        seen.append(text[-1])
        begun.set()
        assert go_on.wait(5)
        return encode(text, *args, **kwargs)

    running.tokenizer.encode = slow
    async with running.client() as client:

        async def ask(key, text):
            return await client.post(CHAT, json=chat(text), headers={"authorization": f"Bearer {key}"})

        many = [asyncio.create_task(ask("sk-a", "a")) for _ in range(5)]
        assert await asyncio.to_thread(begun.wait, 5)
        one = asyncio.create_task(ask("sk-b", "b"))
        for _ in range(100):
            await asyncio.sleep(0)
        go_on.set()
        answers = await asyncio.gather(one, *many)
    assert [each.status_code for each in answers] == [200] * 6
    assert "".join(seen).index("b") <= 1


async def test_half_an_answer_is_never_given_as_a_whole_one():
    """Without streaming, an error after some tokens is only the error."""
    running = Running(lambda _: [TokensOut(tuple(b"half")), EndOut(EndReason.WORKER_LOST)])
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x"))
    assert response.status_code == 503
    assert "half" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_crash_is_contained(stream):
    """An exception gives a 500, or an error event; its words reach neither the client nor the log."""
    running = Running(lambda _: [TokensOut((65,)), ValueError(MARKER)])
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x", stream=stream))
    assert response.status_code == (200 if stream else 500)
    assert "internal_error" in response.text
    assert MARKER not in response.text + running.log.getvalue()
    crash = running.lines()[0]
    assert (crash["event"], crash["error"], crash["level"]) == ("crash", "ValueError", "error")
    assert crash["where"].startswith("fakes.py:")


async def test_what_does_not_fit_hears_the_arithmetic():
    """A request that admission refuses gets the sums of every pool."""
    running = Running(say("x"))
    async with running.client() as client:
        response = await client.post("/v1/completions", json={"model": "toy", "prompt": "x" * 250})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "266 tokens (250 prompt + 16 answer) = 17 pages of 16" in error["message"]
    assert "Lower max_tokens to 6 or less" in error["message"]


async def test_keys_are_asked_for_everywhere_below_v1(tmp_path):
    """Every /v1 route wants a key; a wrong one is a 401 in OpenAI's shape; health routes do not."""
    (tmp_path / "keys").write_text("sk-good acme\n")
    running = Running(say("x"), load_keys(tmp_path / "keys"))
    async with running.client(host="elsewhere.example") as client:
        for method, path in [
            ("POST", CHAT),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/toy"),
        ]:
            response = await client.request(method, path, headers={"authorization": "Bearer sk-bad"})
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        for path in ("/health", "/ready", "/metrics"):
            assert (await client.get(path)).status_code == 200
        response = await client.post(CHAT, json=chat("x"), headers={"authorization": "Bearer sk-good"})
    assert response.status_code == 200
    assert running.generations.requests[0].tenant == "acme"
    assert running.lines()[-1]["tenant"] == "acme"
    assert "sk-" not in running.log.getvalue()


async def test_without_keys_a_foreign_host_name_is_refused():
    """A web page that points its own name at loopback gets nothing."""
    running = Running(say("x"))
    async with running.client(host="evil.example:8000") as client:
        assert (await client.get("/v1/models")).status_code == 403
    async with running.client(host="[::1]:8000") as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_other_addresses_and_methods_have_openais_shape():
    """404 and 405 are errors in OpenAI's shape and do not repeat the path; embeddings say what to use."""
    running = Running(say("x"))
    async with running.client() as client:
        missing = await client.get(f"/v1/{MARKER}")
        method = await client.get(CHAT)
        embeddings = await client.post("/v1/embeddings", json={})
        others = [await client.get(f"/v1/{name}/{MARKER}") for name in NOT_SERVED]
        slash = await client.post(CHAT + "/", json=chat("x"))
    assert [each.status_code for each in (missing, method, embeddings, slash)] == [404, 405, 404, 404]
    assert method.headers["allow"]
    assert "Embeddings are not supported" in embeddings.json()["error"]["message"]
    assert {(each.status_code, each.json()["error"]["code"]) for each in others} == {(404, "not_supported")}
    assert all("message" in each.json()["error"] for each in (missing, method, slash))
    assert MARKER not in missing.text + running.log.getvalue()


async def test_models_names_the_one_that_is_served():
    """The list and the single model agree; another name is a 404."""
    running = Running(say("x"))
    async with running.client() as client:
        listed = (await client.get("/v1/models")).json()
        single = (await client.get("/v1/models/toy")).json()
        other = await client.get("/v1/models/other/name")
    assert listed["data"] == [single]
    assert single["max_model_len"] == 256
    assert other.status_code == 404


async def test_the_request_id_is_ours():
    """A client's id is neither used nor repeated."""
    running = Running(say("x"))
    async with running.client() as client:
        response = await client.post(CHAT, json=chat("x"), headers={"x-request-id": MARKER})
    ours = response.headers["x-request-id"]
    assert ours != MARKER
    assert running.generations.requests[0].id == ours == running.lines()[-1]["request_id"]


async def test_one_canonical_line_for_each_request():
    """The line has counts and times; machines that watch get none."""
    running = Running(say("Paris"))
    async with running.client() as client:
        await client.post(CHAT, json=chat(MARKER))
        await client.get("/health")
        await client.get("/metrics")
    (line,) = running.lines()
    assert line["event"] == "request"
    assert (line["route"], line["status"], line["reason"], line["tenant"]) == (CHAT, 200, "ok", "local")
    assert (line["prompt_tokens"], line["answer_tokens"]) == (len("<user>" + MARKER), 5)
    assert 0 <= line["ttft_ms"] <= line["duration_ms"]


async def test_bodies_above_the_limit_are_refused_without_being_kept():
    """413, whether the length is declared or found out."""

    async def chunks():
        for _ in range(8):
            yield b"x" * 1000

    running = Running(say("x"), max_body_bytes=4000)
    async with running.client() as client:
        declared = await client.post(CHAT, content=b"x" * 4001)
        found_out = await client.post(CHAT, content=chunks())
    for response in (declared, found_out):
        assert response.status_code == 413
        assert "--max-body-bytes" in response.json()["error"]["message"]


class Gauges:
    """A fixed reading of the workers' numbers."""

    def pool_pages(self):
        return {("decode", "decode-0", "free"): 7, ("decode", "decode-0", "quarantined"): 2}

    def handoffs(self):
        return {"adopted": 3}

    def guard_decisions(self):
        return {("fits", "gateway", "refuse"): 27}

    def worker_events(self):
        return {("prefill", "prefill-0", "model_errors"): 4}

    def prefixes(self):
        return {("prefill-0", "hit_tokens"): 64, ("prefill-0", "miss_tokens"): 5, ("prefill-0", "evicted_pages"): 2}


async def test_metrics_show_gateway_and_workers():
    """Requests, times, tokens, pool pages, hand-offs and guard decisions are there; no tenant and no text is."""
    running = Running(say("Paris"), gauges=Gauges())
    async with running.client() as client:
        await client.post(CHAT, json=chat(MARKER))
        await client.post(CHAT, json=chat("x", max_tokens=10_000))
        await client.get(f"/{MARKER}")
        text = (await client.get("/metrics")).text
    for line in (
        "kvfence_requests_open 0.0",  # whoever reads this is none of them
        'kvfence_requests_total{reason="ok",route="/v1/chat/completions",status="200"} 1.0',
        'kvfence_requests_total{reason="not_found",route="other",status="404"} 1.0',
        'kvfence_requests_total{reason="does_not_fit",route="/v1/chat/completions",status="400"} 1.0',
        'kvfence_tokens_total{direction="answer"} 5.0',
        'kvfence_tokens_total{direction="prompt"} 18.0',
        "kvfence_ttft_seconds_count 1.0",
        "kvfence_inter_token_seconds_count 4.0",
        'kvfence_pool_pages{role="decode",state="quarantined",worker="decode-0"} 2.0',
        'kvfence_handoffs_total{outcome="adopted"} 3.0',
        'kvfence_guard_decisions_total{answer="refuse",guard="fits",place="gateway"} 27.0',
        'kvfence_worker_events_total{event="model_errors",role="prefill",worker="prefill-0"} 4.0',
        'kvfence_worker_ready{role="prefill",worker="prefill-0"} 1.0',
        'kvfence_prefix_tokens_total{outcome="hit",worker="prefill-0"} 64.0',
        'kvfence_prefix_evicted_pages_total{worker="prefill-0"} 2.0',
    ):
        assert line in text
    assert MARKER not in text
    assert "local" not in text


async def test_readiness_without_a_probe_is_the_workers_state():
    """With the probe off, ready means that a worker of each role says so, and that requests are admitted."""
    running = Running(say("x"))
    async with running.client() as client:
        assert (await client.get("/ready")).status_code == 200
        running.generations.worker_state = "starting"
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).json()["workers"][0]["state"] == "starting"
        running.generations.worker_state, running.generations.draining = "ready", True
        response = await client.get("/ready")
        assert (response.status_code, response.json()["probe"]["result"]) == (503, "draining")


class Starting(FakeGenerations):
    """Workers that are still starting: nothing is known of their capacity."""

    def __init__(self) -> None:
        super().__init__(say("x"))
        self.worker_state = "starting"

    @property
    def capacity(self):
        raise RemoteProtocolError("the workers are still starting")

    @capacity.setter
    def capacity(self, _):
        pass


async def test_before_the_workers_are_up_requests_get_503():
    """A server that listens before its workers are ready says when to ask again, and is alive."""
    running = Running(say("x"), generations=Starting())
    async with running.client() as client:
        for response in (await client.post(CHAT, json=chat("x")), await client.get("/v1/models")):
            assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
            assert response.headers["retry-after"] == "5"
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503
    assert "crash" not in running.log.getvalue()


async def test_a_client_that_goes_cancels_its_generation():
    """A disconnect before the first token closes the generation, and the line says so."""
    running = Running(lambda _: [asyncio.Event()])
    body = json.dumps(chat("x", stream=True)).encode()
    inbox: asyncio.Queue[dict] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
    scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": [(b"host", b"localhost")]}

    async def send(_):
        raise AssertionError("nothing is sent")

    answering = asyncio.create_task(running.app(scope, inbox.get, send))
    await running.generations.until_open(1)
    inbox.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(answering, 5)
    assert (running.generations.num_open, running.generations.num_cancelled) == (0, 1)
    assert (running.lines()[-1]["reason"], running.lines()[-1]["status"]) == ("client_gone", 499)
