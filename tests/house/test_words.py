"""No file of the project names a package index or a place on somebody's machine."""

import re

import pytest

from tests.house.source import ROOT, shown, tracked_files

# Written in pieces, so that this file may be looked at as well.
FORBIDDEN = [
    "py" + "pi.org",
    "files.python" + "hosted",
    "download.py" + "torch.org",
    "--extra-index" + "-url",
    "--index" + "-url",
    "--find" + "-links",
    "/wo" + "rk/",
    "/ro" + "ot/",
    "/opt/wh" + "eels",
    "../sha" + "red",
]
PATTERN = re.compile("|".join(re.escape(word) for word in FORBIDDEN))
BYTES_MAX = 2_000_000
"""A file of the project above this is not source."""


def findings(name: str, text: str) -> list[str]:
    """Give the lines of a text that hold a forbidden word."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), 1)
        if PATTERN.search(line)
    ]


def test_no_file_holds_a_forbidden_word() -> None:
    """Neither source nor tests nor documents name an index address or a machine's path."""
    found = [
        finding
        for path in tracked_files()
        for finding in findings(shown(path), path.read_text("utf-8", errors="replace"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("word", FORBIDDEN)
def test_a_planted_word_is_found(word: str) -> None:
    """Each forbidden word is found wherever it stands in a line."""
    assert findings("planted", f"first\nsee {word} there") == [f"planted:2: see {word} there"]


def test_no_file_is_too_large_to_be_source() -> None:
    """Weights, traces and other output are not part of the project."""
    assert [shown(path) for path in tracked_files() if path.stat().st_size > BYTES_MAX] == []


def test_the_root_is_looked_at() -> None:
    """The list of files holds what it must: the check does not pass by looking at nothing."""
    assert {ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "src/kvfence/__init__.py"} <= set(tracked_files())
