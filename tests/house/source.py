"""The files that house tests look at."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "kvfence"
_NOT_OURS = {".git", ".venv", "__pycache__", "build", "dist", "node_modules"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file of the project: what git tracks or would track; without git, what lies there."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=30).stdout
        names = [ROOT / name for name in listed.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [path for path in ROOT.rglob("*") if not _NOT_OURS & set(path.relative_to(ROOT).parts)]
    return tuple(sorted(path for path in names if path.is_file()))


def python_files(*folders: str) -> Iterator[Path]:
    """Give the project's Python files below these folders."""
    for path in tracked_files():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders:
            yield path


@cache
def parsed(path: Path) -> ast.Module:
    """Parse a file once."""
    return ast.parse(path.read_text("utf-8"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Give every function below a node, methods and nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def shown(path: Path) -> str:
    """Name a file as a finding names it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
