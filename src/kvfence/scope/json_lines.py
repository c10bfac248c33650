"""JSON lines as DuckDB reads them with all threads, and whether it read every line that can be read.

DuckDB's reader of JSON leaves out blank lines and gives null for what it cannot parse, so its rows are lines only where
their number is the number of lines. Otherwise, and where a broken line could be mended (``formats.mend``), the text is
copied line by line first. Not for: what the fields mean (``values.py``).
"""

from collections.abc import Collection
from pathlib import Path

from kvfence.scope import formats

CHUNK_BYTES = 1 << 24
GOOD, BLANK, BROKEN = 0, 1, 2
_BLANK_LINE = "kvfence: a blank line"
BLANK_LINE = f'"{_BLANK_LINE}"'.encode()
"""Stands for a blank line in a copy, so that lines keep their numbers."""


def documents_of(source: str, is_whole: bool) -> str:
    """Give the statement that reads the JSON values of a text, one a line or, where it is_whole, from an array."""
    shape = "read_json_objects" if is_whole else "read_ndjson_objects"
    more = ", format='auto'" if is_whole else f", ignore_errors=true, maximum_object_size={formats.LINE_BYTES_MAX + 16}"
    return f"SELECT json::VARCHAR AS line FROM {shape}({source}{more})"


def fields_of(documents: str, paths: str, num_paths: int) -> str:
    """Give the statement that takes fields out of JSON values, as text, and tells what each value is."""
    return (
        f"SELECT CASE WHEN starts_with(ltrim(line), '{{') THEN {GOOD} "
        f"WHEN line = '{BLANK_LINE.decode()}' THEN {BLANK} ELSE {BROKEN} END AS kind, "
        + "".join(f"x[{index + 1}] AS f{index}, " for index in range(num_paths))
        + f"FROM (SELECT line, json_extract_string(line, [{paths}]) AS x FROM ({documents}))"
    )


def count_lines(path: Path) -> int:
    """Count the lines of a text, the last one also where it has no end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            count += data.count(b"\n")
            last = data[-1:]
    return count + (last != b"\n")


def can_be_mended(path: Path, numbers: Collection[int]) -> bool:
    """Tell whether one of some lines, numbered from 1, could be read after mending: other lines are broken for good."""
    wanted = frozenset(numbers)
    if not wanted:
        return False
    with path.open("rb") as file:
        return any(number in wanted and formats.is_damaged(number, line) for number, line in enumerate(file, 1))
