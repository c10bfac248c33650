"""The server that these tests share: ``kvfence serve`` as a user runs it."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from kvfence.models.toy import write_toy_checkpoint

READY_S = 90.0
CONTEXT = 768


class Server:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "stderr"
        model = write_toy_checkpoint(folder / "toy", context=CONTEXT)
        (folder / "trace").mkdir()
        command = [str(Path(sys.executable).with_name("kvfence")), "serve", "--model", str(model), "--port", "0"]
        command += ["--pool-tokens", "1024", "--trace", str(folder / "trace")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.url = self._wait_ready()
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def _wait_ready(self) -> str:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = re.search(r"ready: (http://[\d.]+:\d+)/v1", self.log.read_text())
            if found:
                return found.group(1)
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"not ready in time:\n{self.log.read_text()}")

    def worker(self, role: str) -> psutil.Process:
        """The process of a role."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (found,) = [child for child in children if any(f"{role}_worker" in part for part in child.cmdline())]
        return found

    def complete(self, prompt: str, max_tokens: int = 8) -> str:
        """A greedy completion."""
        answer = self.client.completions.create(model="toy", prompt=prompt, max_tokens=max_tokens, temperature=0)
        return answer.choices[0].text

    def kill(self) -> None:
        """Leave no process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all modules; its workers die with it. The last test of ``test_serve.py`` ends it."""
    running = Server(tmp_path_factory.mktemp("serve"))
    yield running
    running.kill()
