"""Live endpoints, named with their role: judged by what they say, and watched."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvfence.cli.main import main


class Engine(ThreadingHTTPServer):
    """A server that says of itself what it is told to; it notes every request."""

    def __init__(self, mode: str, pool: int) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[tuple[str, str]] = []
        self.info = {
            "version": "0.5.19",
            "disaggregation_mode": mode,
            "context_length": 8192,
            "max_req_input_len": min(pool, 8192) - 6,
            "mem_fraction_static": 0.8,
            "internal_states": [{"memory_usage": {"token_capacity": pool}}],
        }

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """Answers /server_info alone."""

    server: Engine

    def do_GET(self) -> None:
        """Answer."""
        self.server.asked.append((self.command, self.path))
        found = self.path == "/server_info"
        body = json.dumps(self.server.info).encode() if found else b"{}"
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def pair() -> Iterator[tuple[Engine, Engine]]:
    """A prefill whose pool is too small, and a decode."""
    made = (Engine("prefill", 1024), Engine("decode", 20_000))
    threads = [threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.01}) for each in made]
    for thread in threads:
        thread.start()
    yield made
    for each in made:
        each.shutdown()
        each.server_close()
    for thread in threads:
        thread.join(10)


def kvfence(*arguments: str) -> int:
    """Run the command line in this process and give its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_two_urls_are_judged(pair: tuple[Engine, Engine], capsys: pytest.CaptureFixture[str]) -> None:
    """The pool of each role is read from its own answer; nothing but GET is sent."""
    prefill, decode = pair
    assert kvfence("audit", "check", "--prefill", prefill.url, "--decode", decode.url, "--json") == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    verdicts = {each["subject"]: each["verdict"] for each in findings if each["rule"] == "KVF0001"}
    assert verdicts == {f"prefill {prefill.url}": "fail", f"decode {decode.url}": "pass"}
    assert {method for each in pair for method, _ in each.asked} == {"GET"}


def test_a_server_that_is_gone_is_unknown(pair: tuple[Engine, Engine], capsys: pytest.CaptureFixture[str]) -> None:
    """No answer is no pass."""
    gone = Engine("prefill", 1024)
    gone.server_close()
    assert kvfence("audit", "check", "--prefill", gone.url, "--decode", pair[1].url, "--json") in {1, 3}
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {each["verdict"] for each in findings if each["subject"] == f"prefill {gone.url}"} <= {"unknown", "pass"}
    assert any(each["verdict"] == "unknown" for each in findings if each["rule"] == "KVF0001")


def test_watch_sees_the_pool_shrink(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two checks a restarted prefill has less memory: the change is one line."""
    server = Engine("prefill", 20_000)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def restart(_: float) -> None:
        server.info |= {"max_req_input_len": 1018, "internal_states": [{"memory_usage": {"token_capacity": 1024}}]}

    monkeypatch.setattr("kvfence.cli.audit.time.sleep", restart)
    try:
        assert kvfence("audit", "watch", "--prefill", server.url, "--times", "2") == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    assert f"pass -> fail critical KVF0001 prefill {server.url}" in capsys.readouterr().out
