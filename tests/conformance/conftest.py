"""A served toy model for clients that others wrote. ``KVFENCE``: its command, from wherever it is installed."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

READY_S = 120.0
KVFENCE = Path(os.environ.get("KVFENCE", "kvfence")).absolute()
TOY = (
    "import sys, pathlib; from kvfence.models.toy import write_toy_checkpoint as write;"
    "write(pathlib.Path(sys.argv[1]), context=1024)"
)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server answers; it ends with the session."""
    folder = tmp_path_factory.mktemp("serve")
    subprocess.run([KVFENCE.with_name("python"), "-c", TOY, str(folder / "toy")], check=True, timeout=60)
    command = [KVFENCE, "serve", "--model", str(folder / "toy"), "--port", "0", "--pool-tokens", "2048"]
    log = folder / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield _wait_ready(server, log)
        assert server.poll() is None, "the server died"
        said = log.read_text()
        assert '"event":"crash"' not in said, said[-4000:]
        assert "Traceback" not in said, said[-4000:]
    finally:
        server.terminate()
        server.wait(30)


def _wait_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        found = re.search(r"ready: (http://[\d.]+:\d+)/v1", log.read_text())
        if found:
            return found.group(1)
        assert server.poll() is None, log.read_text()
        time.sleep(0.1)
    sys.exit(f"not ready in {READY_S:.0f} s:\n{log.read_text()}")
