"""The house rules: each takes one parsed file and gives what is wrong with it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import Function, functions, shown

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 5
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc", "shared"}


def too_long(path: Path, tree: ast.Module) -> Iterator[str]:
    """A file has fewer than 500 lines, a function at most 70."""
    lines = len(path.read_text("utf-8").splitlines())
    if lines >= FILE_LINES_MAX:
        yield f"{shown(path)}: {lines} lines; split it where a noun ends"
    for function in functions(tree):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield f"{shown(path)}:{function.lineno} {function.name}: {length} lines; name its parts"


def too_many_parameters(path: Path, tree: ast.Module) -> Iterator[str]:
    """A function takes at most five positional parameters; keyword-only ones and a command's options are named."""
    for function in functions(tree):
        given = [*function.args.posonlyargs, *function.args.args]
        names = [argument.arg for argument in given if argument.arg not in {"self", "cls"}]
        if len(names) > PARAMETERS_MAX and not _is_command(function):
            yield f"{shown(path)}:{function.lineno} {function.name}: {len(names)} parameters; make a Struct"


def forbidden_name(path: Path, tree: ast.Module) -> Iterator[str]:
    """A module is named after what it holds."""
    for name in {path.stem, path.parent.name} & FORBIDDEN_NAMES:
        yield f"{shown(path)}: {name} says nothing; name the noun"


def asserts(path: Path, tree: ast.Module) -> Iterator[str]:
    """Checks stay on in production: require, not assert."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"{shown(path)}:{node.lineno} assert; use core.invariant.require"


def without_docstring(path: Path, tree: ast.Module) -> Iterator[str]:
    """Modules and public classes, functions and methods state their contract."""
    if not ast.get_docstring(tree):
        yield f"{shown(path)}: no module docstring"
    yield from _undocumented(path, tree)


def test_without_docstring(path: Path, tree: ast.Module) -> Iterator[str]:
    """A test's docstring states the behaviour."""
    for function in functions(tree):
        if function.name.startswith("test_") and not ast.get_docstring(function):
            yield f"{shown(path)}:{function.lineno} {function.name}: no docstring"


def sleeps(path: Path, tree: ast.Module) -> Iterator[str]:
    """Tests wait for a condition with a deadline; they never sleep a fixed time outside a polling loop."""
    for function in functions(tree):
        loops = [node for node in ast.walk(function) if isinstance(node, ast.While | ast.For | ast.AsyncFor)]
        inside = {id(child) for loop in loops for child in ast.walk(loop)}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _called(node) in _SLEEPS and id(node) not in inside and not _yields(node):
                yield f"{shown(path)}:{node.lineno} {function.name}: sleeps; poll with a deadline"


_SLEEPS = {"time.sleep", "asyncio.sleep", "sleep"}


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _yields(call: ast.Call) -> bool:
    """``sleep(0)`` only lets others run."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _undocumented(path: Path, node: ast.Module | ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        if not isinstance(child, ast.ClassDef | Function) or child.name.startswith("_"):
            continue
        if not ast.get_docstring(child) and not _is_overload(child):
            yield f"{shown(path)}:{child.lineno} {child.name}: no docstring"
        if isinstance(child, ast.ClassDef):
            yield from _undocumented(path, child)


def _is_overload(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def _is_command(function: Function) -> bool:
    marks = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(".command(" in mark or ".callback(" in mark for mark in marks)
