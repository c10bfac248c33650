"""What goes to which stream, and in what form."""

import pytest

from kvfence.cli.render import print_json, print_table, progress


def test_a_document_is_the_whole_of_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """--json gives one document with a newline at its end, and nothing on stderr."""
    print_json({"leaked": {"small_unguarded": 27}})
    captured = capsys.readouterr()
    assert captured.out == '{\n  "leaked": {\n    "small_unguarded": 27\n  }\n}\n'
    assert captured.err == ""


def test_a_table_goes_to_stderr_unless_it_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables beside a result are on stderr; nothing in them is wrapped off a terminal or read as markup."""
    long = "x" * 300
    print_table("Runs", ("run", "leaked"), [("small [unguarded]", 27), (long, 0)])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "small [unguarded]" in captured.err
    assert long in captured.err


def test_an_empty_table_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without rows still says what it would show."""
    print_table("", ("run", "leaked"), [], stderr=False)
    assert "leaked" in capsys.readouterr().out


def test_progress_off_a_terminal_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets at most one line for each tenth, all on stderr, however often progress is reported."""
    with progress("model") as report:
        for done in range(1001):
            report("fetch", done * 1_000_000, 1_000_000_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 11
    assert lines[0] == "model: fetch"
    assert lines[-1] == "model: fetch 1000 of 1000 MB"


def test_stages_of_unknown_size_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the size is not known, or the stage has no bytes, one line says that something happens."""
    with progress("model") as report:
        report("fetch", 1_000_000, 0)
        report("fetch", 2_000_000, 0)
        report("verify", 0, 1)
        report("verify", 1, 1)
    assert capsys.readouterr().err.splitlines() == ["model: fetch", "model: verify"]
