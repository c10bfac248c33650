"""``docs/api.md`` lists fields, ends and ways to write calls as the code has them.

``python tests/house/test_api_page.py`` writes the lists anew.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UnsetType

from kvfence.gateway.openai import IGNORED, UNSUPPORTED, ChatBody, CompletionBody
from kvfence.gateway.responses import ENDINGS
from kvfence.models.tool_formats import TOOL_FORMATS

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def fields() -> Iterator[str]:
    """Supported, refused and ignored."""
    yield "| field | chat | completions | |\n|---|---|---|---|\n"
    routes = [_properties(ChatBody), _properties(CompletionBody)]
    for name in sorted({*routes[0], *routes[1]}):
        values = [_values(route[name]) if name in route else "" for route in routes]
        description = "; ".join(dict.fromkeys(route[name]["description"] for route in routes if name in route))
        yield f"| `{name}` | {values[0]} | {values[1]} | {description} |\n"
    yield "\nRefused by name, but for the values that ask for nothing:\n\n| field | lets through |\n|---|---|\n"
    served = {*routes[0]} & {*routes[1]}
    for name in sorted(UNSUPPORTED):
        if name not in served:
            only = "" if name not in {*routes[0], *routes[1]} else " (where the table above has it not)"
            harmless = ", ".join(f"`{json.dumps(value)}`" for value in (None, *UNSUPPORTED[name]))
            yield f"| `{name}`{only} | {harmless} |\n"
    yield "\nTaken and ignored, as are all fields that stand in no table:\n\n| field | why |\n|---|---|\n"
    yield from (f"| `{name}` | {why} |\n" for name, why in sorted(IGNORED.items()))


def _properties(body: type) -> dict[str, Any]:
    return msgspec.json.schema(body)["$defs"][body.__name__]["properties"]


def _values(schema: dict[str, Any]) -> str:
    """Word one field's values: their kinds and bounds."""
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    return " or ".join(_value(part) for part in parts)


def _value(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{each}`" for each in part["enum"])
    kind = part.get("type", "object")
    if kind == "array":
        return (
            f"list of {' or '.join(dict.fromkeys(_kind(each) for each in part['items'].get('anyOf', [part['items']])))}"
        )
    low, high = part.get("minimum", part.get("exclusiveMinimum")), part.get("maximum")
    if low is None:
        return kind
    above = "above " if "exclusiveMinimum" in part else ""
    return f"{kind}, {above}{low}" + (
        f" to {high}" if high is not None and high < 2**31 - 1 else " or more" * (not above)
    )


def _kind(part: dict[str, Any]) -> str:
    return part.get("type", "object")


def endings() -> Iterator[str]:
    """Each way an attempt ends, as its client sees it."""
    yield "| why | status | code, or finish_reason | Retry-After |\n|---|---|---|---|\n"
    for reason, row in ENDINGS.items():
        word = row.code if isinstance(row.finish_reason, UnsetType) else f"finish_reason {row.finish_reason}"
        yield f"| {reason.value.replace('_', ' ')} | {row.status} | `{word}` | {row.retry_after_s or ''} |\n"


def tools() -> Iterator[str]:
    """Each way to write calls."""
    yield "| name | calls stand between | arguments in |\n|---|---|---|\n"
    for form in TOOL_FORMATS:
        end = f"`{form.end}`" if form.end else "the end"
        bare = ", or in an answer that begins with a brace" if form.bare else ""
        yield f"| {form.name} | `{form.start}` and {end}{bare} | `{form.arguments}` |\n"


SECTIONS = {"fields": fields, "endings": endings, "tools": tools}


def with_sections(text: str) -> str:
    """The page with its lists written anew."""
    for name, lines in SECTIONS.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = before + begin + "".join(lines()) + end + after
    return text


def test_the_page_lists_the_api_as_it_is() -> None:
    """A field, an ending or a way to write calls that is added or changed shows on the page."""
    text = PAGE.read_text()
    assert text == with_sections(text), "stale: run python tests/house/test_api_page.py"


def test_every_field_says_what_it_does() -> None:
    """Every field of a body has a description, and none is served and refused on the same route."""
    for body in (ChatBody, CompletionBody):
        assert all(schema.get("description") for schema in _properties(body).values())
    assert not {*IGNORED} & {*UNSUPPORTED}


if __name__ == "__main__":
    PAGE.write_text(with_sections(PAGE.read_text()))
