"""Live endpoints: what is asked, what is believed, what is never sent or shown."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from kvfence.core.errors import EvidenceError
from kvfence.evidence.document import facts_document
from kvfence.evidence.gather import Spec, gather

METRICS = (
    'sglang:max_total_num_tokens{engine_type="prefill",tp_rank="0"} 1024.0\n'
    'sglang:context_len{engine_type="prefill",tp_rank="0"} 8192.0\n'
)
INFO = {
    "version": "0.5.19", "context_length": 8192, "max_req_input_len": 1018, "disaggregation_mode": "prefill",
    "internal_states": [{"memory_usage": {"token_capacity": 1024}}], "api_key": None,
}  # fmt: skip
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "sglang", "max_model_len": 8192}]}


class FakeEngine(ThreadingHTTPServer):
    """Serves fixed answers on loopback and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.redirect = ""

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        """Answer as told."""
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        status, body = self.server.answers.get(self.path, (404, b""))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.redirect)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    """A fake engine, stopped afterwards."""
    server = FakeEngine()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_engine_is_asked_and_its_answers_are_one_source(engine: FakeEngine) -> None:
    """Pool, limit, context, advertised context, role, version and missing key come from one base URL."""
    engine.answers = {
        "/get_server_info": (200, json.dumps(INFO).encode()),
        "/v1/models": (200, json.dumps(MODELS).encode()),
        "/metrics": (200, METRICS.encode()),
    }
    (source,) = facts_document(gather([engine.url]))["sources"]
    expected = {
        "kind": "endpoint", "engine": "sglang", "version": "0.5.19", "role": "prefill", "pool_tokens": 1024,
        "context_len": 8192, "advertised_context": 8192, "effective_input_limit": 1018, "api_key_set": False,
    }  # fmt: skip
    assert {key: source[key] for key in expected} == expected
    assert source["sources"]["advertised_context"]["where"] == f"{engine.url}/v1/models"


def test_a_url_with_a_path_is_asked_alone(engine: FakeEngine) -> None:
    """Nothing but the path given is asked for."""
    engine.answers = {"/metrics": (200, METRICS.encode())}
    (facts,) = gather([f"{engine.url}/metrics"])
    assert facts.pool_tokens.value == 1024
    assert [path for path, _ in engine.asked] == ["/metrics"]


def test_a_redirect_is_not_followed(engine: FakeEngine) -> None:
    """An answer that points elsewhere is no answer."""
    engine.answers = {"/metrics": (302, b"")}
    engine.redirect = f"{engine.url}/elsewhere"
    gather([f"{engine.url}/metrics"])
    assert [path for path, _ in engine.asked] == ["/metrics"]


def test_a_token_comes_from_the_environment_and_is_not_shown(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is sent as a bearer and stands in no output."""
    monkeypatch.setenv("MY_TOKEN", "Zq9xW7vT5pLm3")
    engine.answers = {"/v1/models": (200, json.dumps(MODELS).encode())}
    facts = gather([Spec(f"{engine.url}/v1/models", token_variable="MY_TOKEN")])
    assert engine.asked == [("/v1/models", "Bearer Zq9xW7vT5pLm3")]
    assert "Zq9xW7vT5pLm3" not in json.dumps(facts_document(facts))


def test_a_url_with_credentials_is_refused_without_showing_them() -> None:
    """Credentials in a URL are refused, and not repeated in the error."""
    with pytest.raises(EvidenceError) as caught:
        gather(["http://user:hunter2@127.0.0.1:1/metrics"])
    assert "hunter2" not in str(caught.value)


def test_nobody_there_is_unknown_with_the_reason(engine: FakeEngine) -> None:
    """A server that does not answer gives unknown facts and says so."""
    url = engine.url
    engine.server_close()
    (facts,) = gather([url])
    assert facts.problems
    assert facts_document([facts])["sources"][0]["pool_tokens"] is None


def test_a_key_that_is_asked_for_is_a_fact(engine: FakeEngine) -> None:
    """401 on /v1/models: a key is set."""
    engine.answers = {"/v1/models": (401, b"")}
    (facts,) = gather([engine.url])
    assert facts.api_key_set.value is True


def test_a_prometheus_server(engine: FakeEngine) -> None:
    """One query gives the facts of each instance."""
    row = {"__name__": "sglang:max_total_num_tokens", "instance": "a:1", "engine_type": "prefill"}
    body = json.dumps({"status": "success", "data": {"result": [{"metric": row, "value": [1, "1024"]}]}}).encode()

    class Any(dict):  # type: ignore[type-arg]
        def get(self, key: str, default: object = None) -> object:
            return (200, body) if key.startswith("/api/v1/query?") else default

    engine.answers = Any()
    (facts,) = gather([f"prometheus+{engine.url}"])
    assert (facts.pool_tokens.value, facts.role.value) == (1024, "prefill")


def test_our_own_server_says_what_each_worker_has(engine: FakeEngine) -> None:
    """/health, /metrics and /v1/models of kvfence give each role's pool, the page size and the context."""
    workers = [
        {"role": role, "worker": f"{role}-{number}", "incarnation": "a", "state": "ready", "pool_tokens": pool}
        for role, number, pool in (("prefill", 0, 4096), ("prefill", 1, 2048), ("decode", 0, 4112))
    ]
    pages = 'kvfence_pool_pages{role="prefill",state="FREE",worker="prefill-0"} 250.0\n'
    pages += 'kvfence_pool_pages{role="prefill",state="GRANTED",worker="prefill-0"} 6.0\n'
    models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "kvfence", "max_model_len": 2048}]}
    engine.answers = {
        "/health": (200, json.dumps({"status": "ok", "model": "m", "workers": workers}).encode()),
        "/metrics": (200, pages.encode()),
        "/v1/models": (200, json.dumps(models).encode()),
    }
    decode, prefill, other = gather([engine.url])
    assert (other.role.value, other.pool_tokens.value) == ("prefill", 2048)
    assert (prefill.role.value, prefill.pool_tokens.value, prefill.page_size.value) == ("prefill", 4096, 16)
    assert (decode.role.value, decode.pool_tokens.value, decode.context_len.value) == ("decode", 4112, 2048)
    assert prefill.engine.value == "kvfence"
