"""``kvfence serve`` as a user runs it: a process, its HTTP port, the official client, signals."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from kvfence.evidence.facts import Known
from kvfence.evidence.gather import gather
from kvfence.models.toy import write_toy_checkpoint
from tests.e2e.conftest import CONTEXT, READY_S, Server

MARKER = "zebra-7f3a-quagga"
"""Stands in a prompt and must stand nowhere else."""


def test_streamed_and_whole_answers_agree(server: Server) -> None:
    """The official client gets the same greedy text either way, and usage."""
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]
    request = {"model": "toy", "messages": messages, "max_tokens": 12, "temperature": 0}
    whole = server.client.chat.completions.create(**request)  # type: ignore[call-overload]
    chunks = list(server.client.chat.completions.create(**request, stream=True))  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert 1 <= whole.usage.completion_tokens <= 12


def test_an_over_long_prompt_is_refused(server: Server) -> None:
    """400 in OpenAI's shape."""
    with pytest.raises(openai.BadRequestError) as caught:
        server.complete("word " * 2000)
    assert caught.value.code == "context_length_exceeded"


def test_audit_reads_of_the_server_what_it_was_started_with(server: Server) -> None:
    """Pools, page size and context of both roles, from its URL alone, as the flags and the checkpoint say."""
    facts = gather([server.url])
    known = {(fact.role.value, fact.pool_tokens.value) for fact in facts if isinstance(fact.role, Known)}  # type: ignore[union-attr]
    assert known == {("prefill", 1024), ("decode", 1024)}
    for fact in facts:
        if isinstance(fact.role, Known):
            assert isinstance(fact.page_size, Known)
            assert fact.page_size.value == 16
            assert isinstance(fact.advertised_context, Known)
            assert fact.advertised_context.value == CONTEXT


@pytest.mark.timeout(180)
def test_a_killed_prefill_worker_costs_503_until_it_is_back(server: Server) -> None:
    """Refusals say when to ask again; then the same prompt has the same answer and every page is free."""
    before = server.complete("once upon a time")
    server.worker("prefill").kill()
    refusals: list[tuple[int, bool]] = []
    deadline = time.monotonic() + READY_S
    while True:
        try:
            after = server.complete("once upon a time")
            break
        except openai.InternalServerError as error:
            refusals.append((error.status_code, int(error.response.headers["retry-after"]) > 0))
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert set(refusals) == {(503, True)}
    assert after == before
    while not re.search(r'state="quarantined",worker="decode-0"} 0\.0', httpx.get(f"{server.url}/metrics").text):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def refused_while_draining(server: Server) -> None:
    """No request is admitted any more: 503 that says when to ask again, and not ready."""
    deadline = time.monotonic() + READY_S
    while (ready := httpx.get(f"{server.url}/ready")).status_code == 200:
        assert time.monotonic() < deadline
    assert ready.json()["probe"]["result"] == "draining"
    with pytest.raises(openai.InternalServerError) as caught:
        server.complete("too late")
    assert (caught.value.status_code, caught.value.code) == (503, "shutdown")
    assert int(caught.value.response.headers["retry-after"]) > 0


@pytest.mark.timeout(180)
def test_prompts_stand_in_no_log_trace_or_metric_and_a_signal_ends_all(server: Server) -> None:
    """Markers planted in accepted and refused prompts are found nowhere; SIGTERM drains, then ends all with 0."""
    server.complete(f"{MARKER} says hello")
    with pytest.raises(openai.BadRequestError) as caught:
        server.complete(MARKER * 500)
    assert MARKER not in str(caught.value)
    metrics = httpx.get(f"{server.url}/metrics").text
    workers = [server.worker("prefill"), server.worker("decode")]
    stream = iter(server.client.completions.create(model="toy", prompt="drain", max_tokens=450, stream=True))
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    refused_while_draining(server)
    assert list(stream)[-1].choices[0].finish_reason in ("length", "stop")
    assert server.process.wait(20) == 0
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    written = [server.log.read_text(), metrics, *(path.read_text() for path in (server.folder / "trace").iterdir())]
    assert len(written) >= 5
    assert all("complet" in text or "type" in text or "kvfence" in text for text in written)
    assert not any(MARKER in text for text in written)


@pytest.mark.timeout(120)
def test_a_signal_while_models_load_ends_the_start(tmp_path: Path) -> None:
    """Ctrl-C does not wait for the workers to be ready, and leaves none behind."""
    model = write_toy_checkpoint(tmp_path / "toy")
    command = [str(Path(sys.executable).with_name("kvfence")), "serve", "--model", str(model), "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("starting toy" in line for line in process.stderr)
        parent, deadline = psutil.Process(process.pid), time.monotonic() + READY_S
        while len(workers := parent.children(recursive=True)) < 2:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
        assert "stopped before it was ready" in process.stderr.read()
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
