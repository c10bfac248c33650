"""``kvfence scope report``: exit codes, streams, and texts of a log that act nowhere."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvfence.cli.scope import _moment, _window
from kvfence.core.errors import SettingsError
from tests.unit.cli.conftest import Run

AT = "2026-09-01T10:00:00Z"


def _log(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps({"created": AT, "status": 200, **row}) + "\n" for row in rows), "utf-8")
    return str(path)


def test_affected_requests_are_exit_code_one(run: Run, tmp_path: Path) -> None:
    """One JSON document on stdout, what was read on stderr, 1 because something was found."""
    log = _log(tmp_path / "a.jsonl", {"id": "a\u001b[2J", "prompt_tokens": 900}, {"id": "b", "prompt_tokens": 5})
    outcome = run("scope", "report", log, "--pool", "800", "--names", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["affected"] == 1
    assert "prompt_tokens = prompt_tokens (name)" in outcome.err
    assert "\u001b[2J" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("row", "code"),
    [({"id": "a", "prompt_tokens": 5}, 0), ({"id": "a", "prompt_tokens": None}, 3)],
    ids=["clear", "unknown"],
)
def test_what_cannot_be_told_is_not_nothing_found(run: Run, tmp_path: Path, row: dict[str, Any], code: int) -> None:
    """0 where all is clear, 3 where something is UNKNOWN."""
    log = _log(tmp_path / "a.jsonl", row, {"id": "b", "prompt_tokens": 7})
    assert run("scope", "report", log, "--pool", "800", "--names", "--json").code == code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no-such-file.jsonl", "--pool", "5"), "no such file"),
        (("{log}",), "--pool TOKENS"),
        (("{log}", "--pool", "5", "--map", "prompt=x"), "--map prompt=x"),
        (("{log}", "--pool", "5", "--window", "2026-09-02", "2026-09-01"), "ends before it begins"),
        (("{log}", "--pool", "5", "--window", "2026-09-02", "9999-12-31"), "--window 9999-12-31"),
        (("{log}", "--pool", "9" * 30), "--pool"),
        (("{log}", "--pool", "5", "--memory", "much"), "--memory much"),
        (("{log}", "--pool", "5", "--exclude", "nobody.txt"), "--exclude nobody.txt"),
        (("{log}", "--pool", "5", "--time-zone", "Mars/Olympus"), "--time-zone Mars/Olympus"),
    ],
)
def test_wrong_usage_is_said_in_a_line(run: Run, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    """Exit 2 and a line that says what to write; no trace of the stack."""
    log = _log(tmp_path / "a.jsonl", {"id": "a", "prompt_tokens": 5})
    outcome = run("scope", "report", *(each.format(log=log) for each in arguments))
    assert outcome.code == 2
    assert says in outcome.err
    assert "Traceback" not in outcome.err


def test_a_date_as_the_end_of_a_window_is_a_whole_day() -> None:
    """From the first moment of the first day to the last of the last one; a zone is honoured."""
    start, end = _window(("2026-08-27", "2026-09-09"))
    assert (str(start), str(end)) == ("2026-08-27 00:00:00", "2026-09-10 00:00:00")
    assert str(_moment("2026-08-27T02:00:00+02:00", "--as-of")[0]) == "2026-08-27 00:00:00"
    with pytest.raises(SettingsError, match="--as-of soon"):
        _moment("soon", "--as-of")


ACCESS = b'10.0.0.1 - - [01/Sep/2026:12:00:06 +0200] "GET / HTTP/1.1" 200 2 "-" "x" request_id=n prompt_tokens=5\n'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"id": "c", "prompt_tokens": 7}\n{"id": "c", "prompt_tok\n', 3),
        (b'{"id": "c\xff", "prompt_tokens": 7}\n', 3),
        (ACCESS + b"something else\n", 3),
        (ACCESS.replace(b"request_id=n", b"request_id=n\xff"), 3),
        (ACCESS.replace(b"GET /", b"GET /\xff"), 0),
        (b"", 0),
    ],
    ids=["broken", "bytes", "no access line", "bytes in an access line", "bytes in a path", "empty"],
)
def test_lines_that_cannot_be_read_are_not_nothing_found(run: Run, tmp_path: Path, text: bytes, code: int) -> None:
    """A line that is not read, or not as it stands, may be anybody's request: 3, though all the others are clear."""
    log = _log(tmp_path / "a.jsonl", {"id": "a", "prompt_tokens": 5}, {"id": "b", "prompt_tokens": 7})
    (tmp_path / "b.log").write_bytes(text)
    assert run("scope", "report", log, str(tmp_path / "b.log"), "--pool", "800", "--names", "--json").code == code


def test_a_date_without_dashes_is_a_whole_day_too() -> None:
    """The window's last day counts whole in every way to write a date."""
    assert _window(("20260901", "20260902")) == _window(("2026-09-01", "2026-09-02"))


def test_a_clock_that_is_ahead_does_not_change_a_report_made_again(run: Run, tmp_path: Path) -> None:
    """A request of the far future is the last one; ``--as-of`` its time gives the same document, byte for byte."""
    rows = ({"id": "a", "prompt_tokens": 900}, {"id": "b", "prompt_tokens": 900, "created": "2095-01-01T10:00:00Z"})
    arguments = ("scope", "report", _log(tmp_path / "a.jsonl", *rows), "--pool", "800", "--names", "--json")
    before = run(*arguments).out
    assert run(*arguments, "--as-of", json.loads(before)["as_of"]).out == before


LINES = (
    b'{"id": "a", "prompt_tokens": 900, "created": "2026-09-01T10:00:00Z", "status": 200}',
    b'{"id": "broken at the time", "prompt',
    b'{"id": "timeless at the time", "prompt_tokens": 7}',
    b'{"id": "b", "prompt_tokens": 5, "created": "2026-09-01T11:00:00Z", "status": 200}',
)
LATER = b'{"id": "c", "prompt_tokens": 900, "created": "2026-09-03T11:00:00Z", "status": 200}'


def test_a_report_is_made_again_or_it_is_said_why_not(run: Run, tmp_path: Path) -> None:
    """What was added behind a later request changes nothing; what nothing dates is an error that names the place."""
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"\n".join(LINES) + b"\n")
    arguments = ("scope", "report", str(log), "--pool", "800", "--names", "--json")
    before = run(*arguments)
    assert json.loads(before.out)["affected"] == 1
    again = ("--as-of", json.loads(before.out)["as_of"])
    timeless = b'{"id": "timeless", "prompt_tokens": 7}'
    log.write_bytes(b"\n".join((*LINES, LATER, b'{"broken', timeless)) + b"\n")
    assert run(*arguments, *again).out == before.out
    for added in (b'{"broken', timeless):
        log.write_bytes(b"\n".join((*LINES, added, LATER)) + b"\n")
        outcome = run(*arguments, *again)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"{log}" in outcome.err.replace("\n", "")
        assert "cut it behind line 4" in outcome.err.replace("\n", " ")


def test_an_empty_file_is_in_a_report_made_again_only_where_its_age_says_so(run: Run, tmp_path: Path) -> None:
    """Nothing in it tells whether it was there: the file's own time does, or there is an error."""
    log = _log(tmp_path / "a.jsonl", {"id": "a", "prompt_tokens": 5})
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    arguments = ("scope", "report", log, str(empty), "--pool", "800", "--names", "--json")
    outcome = run(*arguments, "--as-of", AT)
    assert outcome.code == 2
    assert "empty.jsonl" in outcome.err.replace("\n", "")
    os.utime(empty, (0, 0))
    assert run(*arguments).out == run(*arguments, "--as-of", AT).out
