"""How tests of the command line run it: in this process, with its streams and exit code captured."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from kvfence.cli.main import main


class Outcome(Struct, frozen=True):
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kvfence ARGUMENTS` and give its outcome."""

    def run_main(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        captured = capsys.readouterr()
        return Outcome(int(exited.value.code or 0), captured.out, captured.err)

    return run_main


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kvfence.toml and no KVFENCE_ variable of the machine reaches a test."""
    for name in [name for name in os.environ if name.startswith("KVFENCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
