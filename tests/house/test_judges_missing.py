"""`make prove-judges` where a judge is missing says which line installs it, and runs nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
STANDING = ("cat", "sed", "grep", "printf")
"""What the recipe and the variables of the Makefile call themselves."""


def tools(folder: Path, *present: str) -> Path:
    """Make a folder of commands: those that the Makefile needs, and stand-ins for the judges that are there."""
    folder.mkdir()
    for name in STANDING:
        found = shutil.which(name)
        if found is not None:
            (folder / name).symlink_to(found)
    for name in present:
        (folder / name).write_text("#!/bin/bash\nexit 0\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.skipif(MAKE is None, reason="UNKNOWN: no make here")
@pytest.mark.parametrize(
    ("present", "says"),
    [
        ((), "apt-get install default-jre-headless"),
        (("java",), "apt-get install spin gcc"),
        (("java", "spin"), "apt-get install spin gcc"),
    ],
)
def test_a_missing_judge_is_named_with_its_install_line(tmp_path: Path, present: tuple[str, ...], says: str) -> None:
    """Java, SPIN or the C compiler away: exit 2, the line, and no test was begun."""
    stamp, judges = tmp_path / "installed", tmp_path / "judges"
    stamp.write_text(str(ROOT))
    judges.mkdir()
    (judges / ".installed").touch()
    path = tools(tmp_path / "bin", *present)
    run = subprocess.run(
        [str(MAKE), "prove-judges", f"STAMP={stamp}", f"JUDGES={judges}", "BIN=/nowhere"],
        cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert says in run.stderr
    assert "pytest" not in run.stdout + run.stderr
