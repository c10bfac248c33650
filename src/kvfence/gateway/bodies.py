"""Parses the JSON of a request; a wrong field is named, and no value of the client's is repeated.

Not for: what the fields mean together (``translate.py``).
"""

import re
from typing import TypeVar

import msgspec
from msgspec import json

from kvfence.gateway.openai import UNSUPPORTED, ChatBody, CompletionBody
from kvfence.gateway.responses import INVALID, Failure, refuse_field

_Body = TypeVar("_Body", ChatBody, CompletionBody)

_PLACE = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>\w+)`")
_EXPECTED = re.compile(r"^Expected `[a-z |]+`(, got `\w+`| (of length )?[<>]=? -?[0-9.e+]+)?$")


def read_body(body: bytes, kind: type[_Body]) -> _Body | Failure:
    """Parse a body; the failure names the field and never shows its value."""
    try:
        body.decode("utf-8")  # msgspec looks only at the strings of fields that it knows
        read = json.decode(body, type=kind)
        fields = json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        return _wrong_field(str(error))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Failure(400, INVALID, _not_json(error), "invalid_json")
    for name, harmless in UNSUPPORTED.items():
        if name in fields and name not in kind.__struct_fields__ and not _asks_nothing(fields[name], harmless):
            return refuse_field(name, f"{name} is not supported here; leave it out.", "unsupported_parameter")
    return read


def _not_json(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "The body is nested too deeply."
    if "UTF-8" in str(error) or isinstance(error, UnicodeDecodeError):
        return "The body is not valid UTF-8."
    place = re.search(r"\(byte (\d+)\)", str(error))
    return f"The body is not JSON{f' (at byte {place[1]})' if place else ''}."


def _wrong_field(problem: str) -> Failure:
    """Turn msgspec's words into ours; values, which it sometimes shows, are left out."""
    match = _PLACE.match(problem)
    what, path = (match["what"], match["path"]) if match else (problem, "")
    missing = _MISSING.match(what)
    if missing is not None:
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return refuse_field(param, f"{param} is missing.")
    said = what if _EXPECTED.match(what) else "Wrong value"
    where = path or "the body"
    return Failure(400, INVALID, f"{where}: {said.replace('`', '')}.", param=path or None)


def _asks_nothing(raw: msgspec.Raw, harmless: tuple[object, ...]) -> bool:
    try:
        value = json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return value is None or any(value == each and _same_kind(value, each) for each in harmless)


def _same_kind(value: object, other: object) -> bool:
    """``False`` is no number here, although Python says ``False == 0``."""
    return isinstance(value, bool) == isinstance(other, bool)
