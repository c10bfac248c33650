"""A wheel is read for the guard's points without being run."""

import zipfile
from pathlib import Path

import pytest

from kvfence.core.errors import EvidenceError
from kvfence.guard.sglang.points import Point
from kvfence.guard.wheel import ENGINES, read_wheel

POINT = Point("polled", ("engine.conn.Receiver.poll", "engine.common.Receiver.poll"))


def make_wheel(path: Path, modules: dict[str, str]) -> Path:
    """Write a wheel with these modules."""
    wheel = path / "engine-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, source in modules.items():
            file.writestr(name, source)
    return wheel


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        ({"engine/conn.py": "class Receiver:\n    def poll(self): ..."}, "engine.conn.Receiver.poll"),
        ({"engine/conn.py": "class Receiver: ...", "engine/common.py": "class Receiver:\n    def poll(self): ..."},
         "engine.common.Receiver.poll"),
        ({"engine/conn.py": "class Receiver: ..."}, ""),
        ({"engine/conn.py": "def poll(self): ..."}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_point_is_where_it_is_written(tmp_path: Path, modules: dict[str, str], name: str) -> None:
    """The first name that the wheel writes counts; an inherited or foreign one does not."""
    assert read_wheel(make_wheel(tmp_path, modules), [POINT])[0].name == name


def test_a_field_counts_where_a_class_annotates_it(tmp_path: Path) -> None:
    """A data class has no other place for it."""
    wheel = make_wheel(tmp_path, {"engine/output.py": "class Tables:\n    block_ids: dict\n    other = 1"})
    names = ("engine.output.Tables.block_ids", "engine.output.Tables.other")
    assert [each.name for each in read_wheel(wheel, [Point("tables", (name,)) for name in names])] == [names[0], ""]


def test_a_name_that_a_module_imports_can_be_hooked_there(tmp_path: Path) -> None:
    """A function is called by the module that imported it, so that is where the hook stands."""
    wheel = make_wheel(tmp_path, {"engine/decode.py": "from engine.common import release as free"})
    assert read_wheel(wheel, [Point("released", ("engine.decode.free",))])[0].name == "engine.decode.free"


def test_nothing_of_a_wheel_is_run(tmp_path: Path) -> None:
    """A module that would do harm when imported is only read."""
    wheel = make_wheel(tmp_path, {"engine/conn.py": "raise SystemExit(3)\nclass Receiver:\n    def poll(self): ..."})
    assert read_wheel(wheel, [POINT])[0].name


@pytest.mark.parametrize("source", ["def broken(", "\x00"])
def test_what_is_not_python_is_an_error(tmp_path: Path, source: str) -> None:
    """A module that cannot be read is neither a found nor a missing point."""
    with pytest.raises(EvidenceError, match="not Python"):
        read_wheel(make_wheel(tmp_path, {"engine/conn.py": source}), [POINT])


def test_what_is_no_wheel_is_an_error(tmp_path: Path) -> None:
    """A file of another kind is said to be one."""
    path = tmp_path / "engine.whl"
    path.write_text("not a zip")
    with pytest.raises(EvidenceError, match="not a wheel"):
        read_wheel(path)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_known_by_its_package(tmp_path: Path, engine: str) -> None:
    """Its own points are looked for, and an empty release lacks all of them."""
    found = read_wheel(make_wheel(tmp_path, {f"{engine}/__init__.py": ""}))
    assert [each.point for each in found] == [point.key for point in ENGINES[engine]]
    assert not any(each.name for each in found)


def test_a_wheel_of_another_package_is_an_error(tmp_path: Path) -> None:
    """Not a release that lacks every point."""
    with pytest.raises(EvidenceError, match="holds none of sglang, vllm"):
        read_wheel(make_wheel(tmp_path, {"engine/__init__.py": ""}))
