"""Sizes, names, docstrings: the rules hold, and each finds a planted violation."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.house import rules
from tests.house.source import parsed, python_files

Rule = Callable[[Path, ast.Module], Iterator[str]]

WHERE: dict[Rule, tuple[str, ...]] = {
    rules.too_long: ("src", "tests", "benchmarks"),
    rules.too_many_parameters: ("src",),
    rules.forbidden_name: ("src", "tests", "benchmarks"),
    rules.asserts: ("src",),
    rules.without_docstring: ("src",),
    rules.test_without_docstring: ("tests",),
    rules.sleeps: ("tests",),
}
PLANTED: list[tuple[Rule, str]] = [
    (rules.too_long, "x = 1\n" * 500),
    (rules.too_long, "def f():\n" + "    x = 1\n" * 70),
    (rules.too_many_parameters, "def f(a, b, c, /, d, e, g): ..."),
    (rules.too_many_parameters, "class C:\n    async def f(self, a, b, c, d, e, g): ..."),
    (rules.asserts, "def f(x):\n    assert x"),
    (rules.without_docstring, "x = 1"),
    (rules.without_docstring, '"""M."""\ndef f(): ...'),
    (rules.without_docstring, '"""M."""\nclass C:\n    """C."""\n    def f(self): ...'),
    (rules.test_without_docstring, "def test_x(): ..."),
    (rules.sleeps, "import time\ndef test_x():\n    time.sleep(1)"),
]
ALLOWED: list[tuple[Rule, str]] = [
    (rules.too_long, "x = 1\n" * 499),
    (rules.too_long, "def f():\n" + "    x = 1\n" * 69),
    (rules.too_many_parameters, "class C:\n    def f(self, a, b, c, d, e): ..."),
    (rules.too_many_parameters, "def f(a, b, c, /, d, *, e, g): ..."),
    (rules.too_many_parameters, "@app.command()\ndef f(a, b, c, d, e, g): ..."),
    (rules.without_docstring, '"""M."""\ndef _f(): ...\nclass _C: ...'),
    (rules.sleeps, "import time\ndef f():\n    while late():\n        time.sleep(0.01)"),
    (rules.sleeps, "import asyncio\nasync def f():\n    await asyncio.sleep(0)"),
]


@pytest.mark.parametrize("rule", WHERE, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    """No file of the project breaks the rule."""
    findings = [finding for path in python_files(*WHERE[rule]) for finding in rule(path, parsed(path))]
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize(("rule", "text"), PLANTED)
def test_a_planted_violation_is_found(rule: Rule, text: str, tmp_path: Path) -> None:
    """A file written against the rule gives exactly one finding."""
    path = tmp_path / "planted.py"
    path.write_text(text, "utf-8")
    assert len(list(rule(path, ast.parse(text)))) == 1


@pytest.mark.parametrize(("rule", "text"), ALLOWED)
def test_what_is_allowed_is_not_found(rule: Rule, text: str, tmp_path: Path) -> None:
    """A file at the limit, or outside the rule, gives no finding."""
    path = tmp_path / "allowed.py"
    path.write_text(text, "utf-8")
    assert list(rule(path, ast.parse(text))) == []


@pytest.mark.parametrize("name", ["utils.py", "helpers/pages.py"])
def test_a_name_that_says_nothing_is_found(name: str, tmp_path: Path) -> None:
    """A module or package with an empty name is found by its path alone."""
    assert len(list(rules.forbidden_name(tmp_path / name, ast.parse("")))) == 1
