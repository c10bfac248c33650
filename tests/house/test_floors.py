"""Imports go down only; a planted violation of each kind is found."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.imports import FLOORS, Imports

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
# import-linter refuses a contract about modules that do not exist; our own check needs none.
MUTANTS_CONTRACT = any("kvfence.driver.mutants" in contract.get("forbidden_modules", []) for contract in CONTRACTS)

# name: (module that gets one more line, the line, what the finding says, does import-linter see it as well)
PLANTED = {
    "upward": ("core/pages.py", "import kvfence.cli.exits", "upward", True),
    "upward inside a function": ("core/pages.py", "def f():\n    from kvfence.cli import exits", "upward", True),
    "upward for typing only": (
        "core/pages.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kvfence.cli.exits",
        "upward",
        True,
    ),
    "upward by one floor": ("kv/planted.py", "import kvfence.runtime.planted", "upward", True),
    "sibling": ("wire/planted.py", "import kvfence.kv.planted", "a sibling", True),
    "sibling of the drivers": ("sim/planted.py", "from kvfence import runtime", "a sibling", True),
    "torch in core": ("core/pages.py", "import torch", "only the standard library", True),
    "numpy in protocol": ("protocol/planted.py", "from numpy import array", "only the standard library", True),
    "torch in wire": ("wire/planted.py", "import torch.cuda", "torch stands in", True),
    "torch in the seal": ("kv/seal.py", "import torch", "torch stands in", False),
    "torch in the guard's decisions": ("guard/handoff.py", "import torch", "torch stands in", True),
    "triton in the digest of the host": ("guard/digest.py", "import triton", "torch stands in", True),
    "transformers in runtime": ("runtime/planted.py", "import transformers", "torch stands in", True),
    "mutants in serve": (
        "cli/serve.py",
        "import kvfence.driver.mutants",
        "through kvfence.cli.serve",
        MUTANTS_CONTRACT,
    ),
    "mutants behind serve": (
        "cli/serve.py",
        "from kvfence.runtime import planted",
        "through kvfence.runtime.planted",
        MUTANTS_CONTRACT,
    ),
    "a practice server in serve": (
        "cli/serve.py",
        "import kvfence.ranges.catalogue",
        "reaches kvfence.ranges",
        MUTANTS_CONTRACT,
    ),
    "package on no floor": ("utils/planted.py", "", "on no floor", True),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source in which every package of the map has a module called planted."""
    src = tmp_path / "src"
    shutil.copytree(SRC, src, ignore=shutil.ignore_patterns("__pycache__"))
    for package in set().union(*FLOORS):
        for name in ("__init__", "planted"):
            _append(src / "kvfence" / package / f"{name}.py", "")
    _append(src / "kvfence/driver/mutants.py", "")
    _append(src / "kvfence/runtime/planted.py", "import kvfence.driver.planted")
    return src


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")


def _lint_imports(src: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "pyproject.toml", src.parent)
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(src)}
    return subprocess.run(
        command, cwd=src.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_tree_keeps_its_floors() -> None:
    """No module imports upward, sideways, torch outside its places or, from serve, the mutants and practice servers."""
    assert Imports(SRC).problems() == []


def test_a_contract_keeps_serve_from_the_mutants() -> None:
    """As soon as there are mutants and a serve, a contract of import-linter stands between them."""
    there = all((SRC / "kvfence" / name).exists() for name in ("cli/serve.py", "driver/mutants.py"))
    assert MUTANTS_CONTRACT or not there


def test_a_tree_with_every_package_keeps_its_floors(tree: Path) -> None:
    """The tree that violations are planted in has none by itself, for both checkers."""
    linted = _lint_imports(tree)
    assert Imports(tree).problems() == []
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(tree: Path, name: str) -> None:
    """One line against the floors is found by our check, with what is wrong and where."""
    module, line, said, _ = PLANTED[name]
    _append(tree / "kvfence" / module, line)
    if name == "mutants behind serve":
        _append(tree / "kvfence/runtime/planted.py", "import kvfence.driver.mutants")
    problems = Imports(tree).problems()
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize("name", [name for name, planted in PLANTED.items() if planted[3]])
def test_import_linter_finds_a_planted_violation(tree: Path, name: str) -> None:
    """The contracts of pyproject.toml break on the same line."""
    module, line, _, _ = PLANTED[name]
    _append(tree / "kvfence" / module, line)
    if name == "mutants behind serve":
        _append(tree / "kvfence/runtime/planted.py", "import kvfence.driver.mutants")
    linted = _lint_imports(tree)
    assert linted.returncode == 1, linted.stdout + linted.stderr
    assert "BROKEN" in linted.stdout


def _rule_sets(source: str) -> set[str]:
    """Give the rule sets that a module names: attributes of ``Rules``, and ``Rules(...)`` itself."""
    tree = ast.parse(source)
    named = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Rules"
    }
    called = any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "Rules" for n in ast.walk(tree)
    )
    return named | ({"Rules()"} if called else set())


def test_serve_chooses_between_two_rule_sets_and_makes_no_third() -> None:
    """It names ``Rules.all`` and ``Rules.observing``; what it composes with names none."""
    cli = SRC / "kvfence" / "cli"
    assert _rule_sets((cli / "serve.py").read_text()) == {"all", "observing"}
    for name in ("compose", "observing", "settings_flags", "load_settings", "demo"):
        assert _rule_sets((cli / f"{name}.py").read_text()) == set()
    planted = "from kvfence.protocol.guards import Rules\nRules.without('fits')\nRules(frozenset())"
    assert _rule_sets(planted) == {"without", "Rules()"}
