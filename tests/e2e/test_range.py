"""``kvfence range`` as a user runs it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

READY_S = 60.0


def test_it_says_what_it_is_answers_and_ends_at_a_signal(tmp_path: Path) -> None:
    """What is away and what one will see stand on stderr; the model answers; SIGTERM ends it at once with code 0."""
    log = tmp_path / "stderr"
    command = [str(Path(sys.executable).with_name("kvfence")), "range", "incident", "--port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        url = wait_ready(process, log)
        body = {"model": "practice", "prompt": "Repeat this: plain words", "max_tokens": 8}
        answer = httpx.post(f"{url}/completions", json=body, timeout=30)
        assert answer.json()["choices"][0]["text"] == " plain words"
        assert answer.headers["x-kvfence-range"] == "incident; this server leaks on purpose"
        said = log.read_text()
        assert all(word in said for word in ("leaks on purpose", "refusal-is-final", "kvfence probe run --base-url"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def wait_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Give where it listens, once it does."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        found = re.search(r"ready: (http://127\.0\.0\.1:\d+/v1)", log.read_text())
        if found:
            return found.group(1)
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"not ready in time:\n{log.read_text()}")
