"""The command line: verbs, help, and the code that each ending gives."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import typer

from kvfence import __version__
from kvfence.cli.exits import ExitCode
from kvfence.cli.main import VERBS
from kvfence.core.errors import CapacityError, SettingsError, TraceError, WorkerError
from kvfence.core.invariant import InvariantBroken
from tests.unit.cli.conftest import Run


@pytest.fixture
def serve_does(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Put a verb of the test's own in the place of serve."""

    def replace(action: Callable[[], None]) -> None:
        module = ModuleType("kvfence.cli.serve")
        module.app = typer.Typer()  # type: ignore[attr-defined]
        module.app.command()(action)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "kvfence.cli.serve", module)

    return replace


def _raises(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def test_version(run: Run) -> None:
    """`kvfence --version` prints name and version and nothing else."""
    outcome = run("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"kvfence {__version__}\n", "")


def test_an_unknown_verb_is_wrong_usage(run: Run) -> None:
    """A misspelt verb exits 2 and names the nearest one."""
    outcome = run("confgi")
    assert outcome.code == 2
    assert "config" in outcome.err


def test_the_verb_alone_is_loaded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running one verb imports no other verb's module."""
    for verb in VERBS:
        monkeypatch.delitem(sys.modules, f"kvfence.cli.{verb.name}", raising=False)
    run("config", "show", "--json")
    assert [verb.name for verb in VERBS if f"kvfence.cli.{verb.name}" in sys.modules] == ["config"]


def test_a_verb_that_returns_exits_0(run: Run, serve_does: Callable[[Callable[[], None]], None]) -> None:
    """Nothing found is 0."""
    serve_does(lambda: None)
    assert run("serve").code == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (typer.Exit(ExitCode.FOUND), 1),
        (SettingsError(["port is taken"]), 2),
        (CapacityError("no room"), 2),
        (TraceError("cut off"), 3),
        (WorkerError("decode", "died", 9), 4),
        (InvariantBroken("a page has two holders"), 4),
        (ZeroDivisionError("a customer's text"), 4),
        (FileNotFoundError(2, "No such file or directory", "keys.txt"), 2),
        (ModuleNotFoundError("No module named 'zmq'", name="zmq"), 2),
        (ModuleNotFoundError("No module named 'kvfence.x'", name="kvfence.x"), 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_error_has_its_code(
    run: Run, serve_does: Callable[[Callable[[], None]], None], error: BaseException, code: int
) -> None:
    """An error ends the process with its code, without a traceback and without a stranger's text."""
    serve_does(_raises(error))
    outcome = run("serve")
    assert (outcome.code, outcome.out) == (code, "")
    assert "Traceback" not in outcome.err
    assert "customer" not in outcome.err


def test_a_missing_extra_is_named(run: Run, serve_does: Callable[[Callable[[], None]], None]) -> None:
    """A verb that misses a module says which extra brings it."""
    serve_does(_raises(ModuleNotFoundError("No module named 'zmq'", name="zmq")))
    outcome = run("serve")
    assert outcome.err == "kvfence serve needs the extra 'serve': pip install '.[serve]' (no module named 'zmq')\n"


def test_config_show_is_a_table_on_stdout(run: Run) -> None:
    """Without --json, each setting is a line with its value and its source."""
    outcome = run("config", "show", "--port", "9001")
    [line] = [line for line in outcome.out.splitlines() if line.startswith("server.port ")]
    assert "9001" in line
    assert "--port" in line


def test_wrong_settings_are_told_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two wrong settings are two indented lines below one headline, and exit 2."""
    monkeypatch.setenv("KVFENCE_SERVER__PORT", "x")
    outcome = run("config", "show", "--dtype", "int4")
    assert outcome.code == 2
    headline, *details = outcome.err.splitlines()
    assert headline == "2 settings are wrong:"
    assert [line.split()[0] for line in details] == ["server.port", "model.dtype"]
