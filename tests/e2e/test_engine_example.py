"""The example of a guarded vLLM pair as a user runs it, with stand-ins for the engine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from kvfence.models.toy import write_toy_checkpoint
from tests.engines.processes import free_ports
from tests.house.source import ROOT

READY_S = 90.0
KVFENCE = Path(sys.executable).with_name("kvfence")


@pytest.fixture
def example(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The example's one command, with a stand-in for ``vllm`` and a checkpoint of random weights."""
    vllm = tmp_path / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.e2e.fake_vllm "$@"\n')
    vllm.chmod(0o755)
    model = write_toy_checkpoint(tmp_path / "toy", context=512)
    prefill, decode = free_ports(2)
    said = {"VLLM": vllm, "KVFENCE": KVFENCE, "MODEL": model, "PORT": 0, "PREFILL_PORT": prefill, "DECODE_PORT": decode}
    env = {**os.environ, **{name: str(value) for name, value in said.items()}, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [str(ROOT / "examples" / "vllm-pd" / "run.sh"), "cpu"]
        process = subprocess.Popen(command, env={**env, "TMPDIR": str(tmp_path)}, stdout=out, stderr=out, cwd=tmp_path)
    yield process, log
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.wait(10)


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until the log says it."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.timeout(180)
def test_one_command_gives_a_guarded_pair_and_takes_everything_with_it(
    example: tuple[subprocess.Popen[bytes], Path],
) -> None:
    """Both roles have one key, the gateway answers, and one signal ends all of them and removes the key."""
    process, log = example
    url = wait_for(log, r"ready: (http://[\d.]+:\d+)/v1", process)
    assert "enforcing" in log.read_text()
    body = {"model": "served", "prompt": "hello", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30, trust_env=False)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 5), answer.text
    children = psutil.Process(process.pid).children(recursive=True)
    (state,) = log.parent.glob("tmp.*")
    assert (state / "key").stat().st_mode & 0o077 == 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert not (state / "key").exists()
