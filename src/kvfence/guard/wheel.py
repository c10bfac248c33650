"""Which of the guard's points a wheel has, read from its source without running or installing it."""

import ast
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import EvidenceError
from kvfence.guard.points import Point
from kvfence.guard.sglang.points import POINTS as SGLANG
from kvfence.guard.vllm.points import POINTS as VLLM

SOURCE_BYTES_MAX = 1 << 24
ENGINES: Mapping[str, tuple[Point, ...]] = {"sglang": SGLANG, "vllm": VLLM}
"""The package that an engine's wheel holds, and where the guard enters it."""


class PointFound(Struct, frozen=True):
    """One point. ``name``: which of its names the wheel has; empty where it has none."""

    point: str
    name: str
    wanted: tuple[str, ...]


def read_wheel(path: Path, points: Iterable[Point] | None = None) -> tuple[PointFound, ...]:
    """Look for each point; ``points``: those of the engine whose package the wheel holds, where none are given.

    Raises:
        EvidenceError: not a wheel, of no engine that has a guard, or a module in it is not Python.
    """
    try:
        with zipfile.ZipFile(path) as wheel:
            return tuple(_found(wheel, point) for point in (_points_of(wheel, path) if points is None else points))
    except (OSError, zipfile.BadZipFile) as error:
        raise EvidenceError(f"{path}: not a wheel ({type(error).__name__})") from error


def _points_of(wheel: zipfile.ZipFile, path: Path) -> tuple[Point, ...]:
    engine = next((each for each in ENGINES if f"{each}/__init__.py" in wheel.NameToInfo), None)
    if engine is None:
        raise EvidenceError(f"{path}: holds none of {', '.join(ENGINES)}; name a wheel of one of them")
    return ENGINES[engine]


def _found(wheel: zipfile.ZipFile, point: Point) -> PointFound:
    name = next((name for name in point.names if _stands_in(wheel, name)), "")
    return PointFound(point.key, name, point.names)


def _stands_in(wheel: zipfile.ZipFile, name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = "/".join(parts[:length]) + ".py"
        if path in wheel.NameToInfo:
            if wheel.getinfo(path).file_size > SOURCE_BYTES_MAX:
                raise EvidenceError(f"{path}: longer than {SOURCE_BYTES_MAX} bytes")
            return _defines(path, wheel.read(path), parts[length:])
    return False


def _defines(path: str, source: bytes, qualified: list[str]) -> bool:
    """Is the name written here, class by class? A name that a module imports counts: it can be hooked there."""
    try:
        body: list[ast.stmt] = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: not Python that this interpreter reads ({type(error).__name__})") from error
    for part in qualified:
        node = next((node for node in body if part in _names(node)), None)
        if node is None:
            return False
        body = node.body if isinstance(node, ast.ClassDef) else []
    return True


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom | ast.Import):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()
