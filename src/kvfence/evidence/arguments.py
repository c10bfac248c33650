"""Argument lists as engines print them: ``Args(a=1, b='x')``, ``{'a': 1}``, ``a=1, b=x``; cut-off ends are dropped.

Only complete items count: the last one before a cut may be half a number. Not for: command lines (``commands.py``).
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from kvfence.evidence.readings import Found

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[(\[{]|[)\]}]|,|[^'\"()\[\]{},]+|['\"]", re.DOTALL)
_ITEM = re.compile(
    r"^\s*(?:'(?P<q>[\w.-]+)'|\"(?P<d>[\w.-]+)\"|(?P<b>[A-Za-z_][\w.-]*))\s*(?:=|:)\s*(?P<value>.*)$", re.DOTALL
)
_SOME = re.compile(r"^Some\((.*)\)$", re.DOTALL)
_ENUM = re.compile(r"^<[\w.]+: (.*)>$")
ITEMS_MAX = 5000
LIST_CHARS_MAX = 1 << 17
_WORDS: dict[str, object] = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}


class Argument(Struct, frozen=True):
    """Which fact an argument states, and how its value is read."""

    name: str
    kind: str = "text"
    weight: int = 5


def pairs(text: str, start: int = 0, bare: bool = False) -> Iterator[tuple[str, object]]:
    """The complete top-level items of a printed argument list.

    Shapes:
        start: where the opening bracket is; with ``bare`` the list has none and ends with the text.
    """
    depth, item, count = (1 if bare else 0), "", 0
    for token in _TOKEN.finditer(text, start, start + LIST_CHARS_MAX):
        piece = token[0]
        if piece in "([{" and len(piece) == 1:
            depth += 1
            item = item + piece if depth > 1 else ""
        elif piece in ")]}" and len(piece) == 1:
            depth -= 1
            if depth <= 0:
                yield from _item(item)
                return
            item += piece
        elif piece == "," and depth == 1:
            yield from _item(item)
            item, count = "", count + 1
            if count > ITEMS_MAX:
                return
        else:
            item += piece


def _item(text: str) -> Iterator[tuple[str, object]]:
    match = _ITEM.match(text)
    if match:
        yield match["q"] or match["d"] or match["b"], value_of(match["value"])


def value_of(text: str) -> object:
    """A printed value: None, flag, number, quoted text; anything else stays as written."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if some := _SOME.match(text):
        return value_of(some[1])
    if enum := _ENUM.match(text):
        return value_of(enum[1])
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,12}\.\d*(?:e-?\d{1,2})?", text):
        return float(text)
    return text


def nested(value: object) -> dict[str, object]:
    """An argument that is itself a list of arguments, as a mapping; empty if it is not."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if not isinstance(value, str):
        return {}
    starts = [at for at in (value.find("{"), value.find("(")) if at >= 0]
    return dict(pairs(value, min(starts))) if starts else {}


def stated(arguments: Mapping[str, object], table: Mapping[str, Argument]) -> Iterator[Found]:
    """What a set of arguments states, by an engine's table; None and values of another kind state nothing."""
    for key, value in arguments.items():
        argument = table.get(key)
        if argument is None or value is None:
            continue
        found = as_kind(value, argument.kind)
        if found is not None:
            yield Found(argument.name, found, argument.weight, near=key)


def as_kind(value: object, kind: str) -> int | float | bool | str | None:
    """A value as a number, flag or text, from a printed list or a command line; None if it is not one."""
    if kind == "flag" or kind == "not":
        flag = _flag(value)
        return None if flag is None else flag != (kind == "not")
    if kind == "set":
        return value not in (False, "")
    if isinstance(value, bool):
        return None
    if kind == "int":
        return _whole(value)
    if kind == "float":
        return _fraction(value)
    if isinstance(value, (int, float, str)):
        text = str(value).strip()
        return text if text and "$" not in text and len(text) <= 300 else None
    return None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    return words.get(str(value).strip().lower())


def _whole(value: object) -> int | None:
    if isinstance(value, int):
        return value
    text = str(value).strip().replace("_", "").replace(",", "")
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None


def _fraction(value: object) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    text = str(value).strip()
    return float(text) if re.fullmatch(r"-?\d{1,12}(?:\.\d*)?", text) else None


def without_negative(found: Iterable[Found], names: set[str]) -> Iterator[Found]:
    """Drop values below one where the engine means "by itself" with them."""
    for item in found:
        if item.name in names and isinstance(item.value, (int, float)) and item.value < 1:
            continue
        yield item
