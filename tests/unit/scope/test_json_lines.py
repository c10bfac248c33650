"""JSON lines keep their numbers, and what can be mended is read: the reader of JSON alone sees neither."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvfence.scope import staging
from kvfence.scope.ingest import ingest
from kvfence.scope.json_lines import can_be_mended, count_lines
from kvfence.scope.relation import Reading
from kvfence.scope.staging import Plan
from kvfence.scope.store import open_store
from tests.unit.scope.logbook import FIRST, entry

ROWS = [msgspec.json.encode(entry(f"row-{n}", 100 + n, FIRST)) for n in range(4)]
BOM = b"\xef\xbb\xbf"


def read(path: Path, data: bytes) -> tuple[Reading, dict[str, int]]:
    """Give what was found in a text, and the line of each request."""
    path.write_bytes(data)
    with open_store(lambda *_: None) as store:
        sources = ingest(store, (str(path),), Plan())
        rows = sources.table.select("request_id", "source_line").to_pyarrow().to_pylist()
    return sources.readings[str(path)], {row["request_id"]: row["source_line"] for row in rows}


CASES = {
    "plain": (b"\n".join(ROWS), [1, 2, 3, 4], {}),
    "ends of two bytes": (b"\r\n".join(ROWS) + b"\r\n", [1, 2, 3, 4], {}),
    "blank lines": (b"\n \n".join(ROWS) + b"\n\t\n\n", [1, 3, 5, 7], {}),
    "a mark of the byte order": (BOM + b"\n".join(ROWS), [1, 2, 3, 4], {}),
    "torn": (b"\n".join([*ROWS, ROWS[0][:50]]), [1, 2, 3, 4], {"not_json": (1, 5)}),
    "no UTF-8": (b"\n".join([ROWS[0].replace(b'"glm', b'"\xff'), *ROWS[1:]]), [1, 2, 3, 4], {"not_utf8": (1, 1)}),
    "a control byte": (
        b"\n".join([ROWS[0].replace(b'"glm', b'"\x00'), *ROWS[1:]]),
        [1, 2, 3, 4],
        {"control_bytes": (1, 1)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_line_that_can_be_read_is_read_under_its_number(tmp_path: Path, name: str) -> None:
    """Requests lie on the lines of their file, and damage is counted with its first line, whatever stands between."""
    data, lines, damage = CASES[name]
    reading, found = read(tmp_path / "log.jsonl", data)
    assert found == {f"row-{n}": line for n, line in enumerate(lines)}
    said = {each.kind: (each.count, each.first) for each in reading.troubles if each.kind != "no_zone"}
    assert said == damage


@pytest.mark.parametrize("name", ["blank lines", "no UTF-8", "a control byte"])
def test_without_the_look_at_all_lines_something_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each of these would be misnumbered or lost if rows were taken for lines."""
    everything: Callable[..., bool] = lambda *_: True  # noqa: E731
    monkeypatch.setattr(staging, "_is_all", everything)
    data, lines, _damage = CASES[name]
    _reading, found = read(tmp_path / "log.jsonl", data)
    assert found != {f"row-{n}": line for n, line in enumerate(lines)}


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3)])
def test_lines_are_counted_with_the_last_one(tmp_path: Path, data: bytes, count: int) -> None:
    """A last line without an end is a line; an end without a line is none."""
    (tmp_path / "a").write_bytes(data)
    assert count_lines(tmp_path / "a") == count


def test_only_broken_lines_are_looked_at(tmp_path: Path) -> None:
    """A line that is broken for good asks for no copy, nor does damage in a line that was read."""
    (tmp_path / "a").write_bytes(b'{"a": 1\n\xff\n')
    assert not can_be_mended(tmp_path / "a", [1])
    assert can_be_mended(tmp_path / "a", [1, 2])
