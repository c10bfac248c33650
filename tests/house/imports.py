"""Who imports whom, read from the source without running it, and what is not allowed.

import-linter checks the floors again, from ``pyproject.toml``; this check also covers what a contract cannot say while
a module is missing, and says where the import stands.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FLOORS = (
    {"core"},
    {"protocol"},
    {"driver", "trace", "kv", "wire", "models", "evidence"},
    {"runtime", "sim", "prove"},
    {"gateway", "engines", "guard", "incident", "ranges", "audit", "scope", "probe"},
    {"cli"},
    {"__main__"},
)
PURE = {"core", "protocol"}
PURE_MAY_IMPORT = {"kvfence", "msgspec", *sys.stdlib_module_names}
TORCH_MAY_STAND_IN = (
    "kvfence.kv.host", "kvfence.kv.cuda", "kvfence.models",
    "kvfence.guard.tensor_digest", "kvfence.guard.digest_kernel",
)  # fmt: skip
MUTANTS = ("kvfence.driver.mutants", "kvfence.ranges")
WITHOUT_MUTANTS = "kvfence.cli.serve"


class Imports:
    """Every import of every module below one source folder."""

    def __init__(self, src: Path) -> None:
        paths = sorted((src / "kvfence").rglob("*.py"))
        self.paths = {_module_name(src, path): path for path in paths}
        self.of: dict[str, dict[str, int]] = {name: dict(_imports(path)) for name, path in self.paths.items()}

    def problems(self) -> list[str]:
        """Say each import that is not allowed, with its place."""
        checks = (self._floors, self._pure, self._torch, self._mutants)
        return [problem for check in checks for problem in check()]

    def _floors(self) -> Iterator[str]:
        floor_of = {package: number for number, packages in enumerate(FLOORS) for package in packages}
        for name, targets in self.of.items():
            package = _package(name)
            if package and package not in floor_of:
                yield f"{name}: the package {package} is on no floor"
                continue
            for target, line in targets.items():
                other = _package(target)
                if not package or other == package or other not in floor_of:
                    continue
                if floor_of[other] >= floor_of[package]:
                    way = "a sibling" if floor_of[other] == floor_of[package] else "upward"
                    yield f"{name}:{line} imports {target}: {way}"

    def _pure(self) -> Iterator[str]:
        for name, targets in self.of.items():
            for target, line in targets.items():
                if _package(name) in PURE and target.partition(".")[0] not in PURE_MAY_IMPORT:
                    yield f"{name}:{line} imports {target}: only the standard library and msgspec here"

    def _torch(self) -> Iterator[str]:
        for name, targets in self.of.items():
            for target, line in targets.items():
                allowed = any(name == place or name.startswith(place + ".") for place in TORCH_MAY_STAND_IN)
                if target.partition(".")[0] in {"torch", "transformers", "triton"} and not allowed:
                    yield f"{name}:{line} imports {target}: torch stands in {', '.join(TORCH_MAY_STAND_IN)} only"

    def _mutants(self) -> Iterator[str]:
        reached, todo = {WITHOUT_MUTANTS: ""}, [WITHOUT_MUTANTS]
        while todo:
            name = todo.pop()
            for target in self._modules_run_by(name):
                if target not in reached:
                    reached[target] = name
                    todo.append(target)
        for mutants in MUTANTS:
            if mutants in reached:
                yield f"{WITHOUT_MUTANTS} reaches {mutants} through {reached[mutants]}"

    def _modules_run_by(self, name: str) -> Iterator[str]:
        """Give the modules that importing ``name`` runs: its targets, and the packages around them."""
        for target in self.of.get(name, {}):
            parts = target.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _module_name(src: Path, path: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(name: str) -> str:
    parts = name.split(".")
    return parts[1] if parts[0] == "kvfence" and len(parts) > 1 else ""


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import name`: the name may be a module, so both count.
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
