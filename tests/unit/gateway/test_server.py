import asyncio
import json
import time

import httpx
import pytest

from kvfence.core.errors import SettingsError
from kvfence.gateway import server
from kvfence.gateway.registry import load_keys
from kvfence.gateway.server import Address, address_of, bind, serving
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.unit.gateway.fakes import Running, chat, say


def test_a_taken_port_names_the_flag():
    """A port that another listens on is a settings error with the port and the flag, before anything starts."""
    with bind("127.0.0.1", 0) as first:
        port = address_of(first).port
        with pytest.raises(SettingsError, match=f"--port {port} is taken"):
            bind("127.0.0.1", port)


def test_a_host_of_another_machine_names_the_flag():
    """A host that is not ours, or that is no host, is a settings error."""
    for host in ("192.0.2.1", "no such host"):
        with pytest.raises(SettingsError, match="--host"):
            bind(host, 0)


def test_an_address_is_a_url():
    """IPv6 addresses stand in brackets."""
    assert Address("127.0.0.1", 80).url == "http://127.0.0.1:80"
    assert Address("::1", 80).url == "http://[::1]:80"


async def test_serving_answers_and_closes():
    """The server answers while the block runs, without naming itself, and the port is free afterwards."""
    running = Running(say("x"))
    listener = bind("127.0.0.1", 0)
    async with serving(running.app, listener) as address:
        async with httpx.AsyncClient(base_url=address.url) as client:
            response = await client.post("/v1/chat/completions", json=chat("x"))
        assert response.status_code == 200
        assert "server" not in response.headers
    with bind("127.0.0.1", address.port):
        pass


@pytest.mark.parametrize("stream", [True, False])
async def test_stopping_ends_open_requests(stream):
    """A request that is open when the server stops hears of it within the bound, and its generation is closed."""
    running = Running(lambda _: [TokensOut((65,)), asyncio.Event()])
    began = time.perf_counter()
    async with serving(running.app, bind("127.0.0.1", 0), stop_timeout_s=1) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        body = json.dumps(chat("x", stream=stream)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await running.generations.until_open(1)
    answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    assert time.perf_counter() - began < 3
    assert (" 200 " if stream else " 503 ") in answer.splitlines()[0]
    assert '"code":"shutdown"' in answer
    assert "[DONE]" not in answer
    assert (running.generations.num_open, running.generations.num_cancelled) == (0, 1)
    assert running.lines()[-1]["reason"] == "shutdown"


@pytest.mark.parametrize("head", ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked"])
async def test_a_body_that_is_no_http_is_no_crash(tmp_path, head):
    """A request whose body breaks off as HTTP while it is being refused is the client's fault in the log, and a 400."""
    (tmp_path / "keys").write_text("sk-good acme\n")
    running = Running(say("x"), load_keys(tmp_path / "keys"))
    async with serving(running.app, bind("127.0.0.1", 0)) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\nzz\r\nhello\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    (line,) = running.lines()
    assert (line["event"], line["status"], line["reason"]) == ("request", 400, "broken_request")


async def test_a_connection_without_a_request_is_closed(monkeypatch):
    """Neither silence nor half a head, at first or after an answer, holds a connection for longer than the bound."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    half, whole = b"GET /health HTTP/1.1\r\nhost:", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with serving(Running(say("Hi")).app, bind("127.0.0.1", 0), 1) as address:
        for sent in (b"", half, whole + half):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(sent)
            async with asyncio.timeout(3):
                answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200") == (whole in sent)


async def test_an_answer_may_take_longer_than_a_head(monkeypatch):
    """A request that has begun is not given up, however long its answer takes."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    gate = asyncio.Event()
    running = Running(lambda _: [TokensOut((72,)), gate, TokensOut((105,)), EndOut(EndReason.STOP)])
    async with serving(running.app, bind("127.0.0.1", 0), 1) as address, httpx.AsyncClient(timeout=5) as client:
        asyncio.get_running_loop().call_later(0.3, gate.set)
        answer = await client.post(f"{address.url}/v1/chat/completions", json=chat("x"))
    assert answer.json()["choices"][0]["message"]["content"] == "Hi"
