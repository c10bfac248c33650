"""The light install, as a stranger gets it: a wheel in a clean environment, small, without torch, quick to answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZE_MB_MAX = 60.0
FIRST_VERDICT_CPU_S_MAX = 2.0
BROUGHT_BY_VENV = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel")
LINE = (
    "[2026-08-01 00:00:00 TP0] max_total_num_tokens=681280, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=48, context_len=1048576, available_gpu_mem=9.99 GB\n"
)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with nothing but the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("clean")
    run = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(run, check=True, timeout=240)
    (wheel,) = folder.glob("kvfence-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
    pins = ["-c", str(ROOT / "constraints" / "all.txt")]
    python = folder / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel), *pins], check=True, timeout=240)
    return folder


def site_packages(folder: Path) -> Path:
    """Where the environment keeps its packages."""
    (found,) = (folder / "venv" / "lib").glob("python*/site-packages")
    return found


@pytest.mark.timeout(600)
def test_it_is_below_60_mb_and_has_no_torch(clean: Path) -> None:
    """Everything but pip itself counts."""
    total = 0
    for entry in site_packages(clean).iterdir():
        if entry.name.split("-")[0] not in BROUGHT_BY_VENV:
            files = [entry] if entry.is_file() else [path for path in entry.rglob("*") if path.is_file()]
            total += sum(path.stat().st_size for path in files)
    assert 1 < total / 1e6 < SIZE_MB_MAX
    for heavy in ("torch", "numpy", "transformers", "zmq", "starlette"):
        assert not (site_packages(clean) / heavy).exists()


@pytest.mark.timeout(600)
def test_the_first_verdict_comes_at_once(clean: Path, tmp_path: Path) -> None:
    """Two start-up logs in, the incident's own FAIL out; measured in CPU seconds, since machines are shared."""
    logs = [tmp_path / "prefill.log", tmp_path / "decode.log"]
    for log in logs:
        log.write_text(LINE)
    kvfence = clean / "venv" / "bin" / "kvfence"
    before = os.times()
    command = [str(kvfence), "audit", "check", f"{logs[0]}=prefill", f"{logs[1]}=decode", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    after = os.times()
    assert done.returncode == 1, done.stderr
    assert "681,274" in json.dumps(json.loads(done.stdout))
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < FIRST_VERDICT_CPU_S_MAX
