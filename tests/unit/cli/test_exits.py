"""Errors become codes and lines."""

import inspect

import pytest

from kvfence.cli.exits import ExitCode, exit_code_of, report
from kvfence.core import errors
from kvfence.core.errors import KvfenceError, ModelError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, KvfenceError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_the_tree_ends_as_a_failure(kind: type[KvfenceError]) -> None:
    """No error of the tree is taken for `nothing found` or for a finding."""
    error = kind.__new__(kind)
    assert exit_code_of(error) in {ExitCode.USAGE, ExitCode.COULD_NOT_TELL, ExitCode.OUR_FAULT}


def test_a_message_of_several_lines_has_one_headline(capsys: pytest.CaptureFixture[str]) -> None:
    """The first line of an error is the headline; the arithmetic below it is indented."""
    assert report(ModelError("prefill cannot hold one context\n8 pages < 9 pages")) is ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "prefill cannot hold one context\n  8 pages < 9 pages\n"


def test_markup_in_a_message_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets in a message are shown, not read as colours."""
    report(ModelError("pip install '.[serve]'"))
    assert capsys.readouterr().err == "pip install '.[serve]'\n"


def test_a_traceback_is_shown_on_request_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KVFENCE_TRACEBACK=1 shows where a stranger's error came from, still without its text."""
    monkeypatch.setenv("KVFENCE_TRACEBACK", "1")
    with pytest.raises(ValueError) as raised:
        raise ValueError("a customer's text")
    assert report(raised.value) is ExitCode.OUR_FAULT
    shown = capsys.readouterr().err
    assert "test_exits.py" in shown
    assert "raised at:" in shown
    assert shown.count("customer") == 1  # the line of this test, as source; not the message
