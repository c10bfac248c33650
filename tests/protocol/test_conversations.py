"""Scripted conversations with their full output.

Write the files anew with ``python -m tests.protocol.test_conversations`` and read the difference.
"""

from pathlib import Path

import pytest

from tests.protocol import fault_scripts, sharing_scripts
from tests.protocol.scripts import SCRIPTS

FOLDER = Path(__file__).parent / "conversations"
WRITTEN_IN = (fault_scripts, sharing_scripts)
"""Importing these registers their scripts beside those of ``scripts.py``."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_conversation_goes_as_written(name: str) -> None:
    """The nodes say and do exactly what the file says, in that order."""
    expected = (FOLDER / f"{name}.txt").read_text("utf-8")
    assert SCRIPTS[name]().text == expected.partition("\n\n")[2]


def test_every_file_has_its_script() -> None:
    """No conversation lies about that nothing checks."""
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCRIPTS)


def write() -> None:
    """Write every conversation to its file, for review."""
    for name, play in SCRIPTS.items():
        (FOLDER / f"{name}.txt").write_text(f"{play.__doc__}\n\n{play().text}", "utf-8")


if __name__ == "__main__":
    write()
