"""How forms are written: numbers, named groups that become readings, and the pieces every engine's lines share.

Not for: any one engine's lines.
"""

import re
from collections.abc import Callable, Iterable

from msgspec import structs

from kvfence.evidence.readings import Form, Found, Line, Value

DIGITS = r"(?:\d{1,3}(?:[,_]\d{3})+|\d{1,15})(?!\d|[.,_]\d)"
"""A whole number, with or without thousands separators, that does not go on."""

FLOAT = r"\d{1,12}(?:\.\d{1,9})?(?!\d)"

_FLOATS = {"memory_fraction", "release_timeout_s", "transfer_timeout_s", "waiting_timeout_s", "router_timeout_s"}
_TEXTS = {
    "version", "role", "model", "pool_class", "dtype", "kv_dtype", "quantisation", "cuda_graph", "speculation",
    "layout", "transfer_backend", "connector", "kv_canary_requested", "kv_canary_real_data", "prefix_cache",
    "outer_cache", "failure_policy", "health_check", "side_channel",
}  # fmt: skip


def whole(text: str) -> int:
    """A whole number as written, separators taken out."""
    return int(text.replace(",", "").replace("_", ""))


def typed(name: str, text: str) -> Value:
    """A group's text as the kind of value its name stands for."""
    if name == "version":
        return text.strip().removeprefix("v")
    if name in _TEXTS:
        return text.strip()
    if name in _FLOATS:
        return float(text.replace(",", ""))
    return whole(text)


def plain(engine: str, anchors: str | tuple[str, ...], pattern: str, *always: Found, weight: int = 5) -> Form:
    """A form whose named groups are the readings (``{N}`` is a whole number); ``always`` comes with them."""
    compiled = compiled_form(pattern)

    def read(match: re.Match[str], line: Line) -> Iterable[Found]:
        del line
        for name, text in match.groupdict().items():
            if text is not None:
                yield Found(name, typed(name, text), weight)
        yield from always

    return Form(engine, (anchors,) if isinstance(anchors, str) else anchors, compiled, read)


def reading(
    engine: str, anchors: str | tuple[str, ...], pattern: str, read: Callable[[re.Match[str], Line], Iterable[Found]]
) -> Form:
    """A form with a reader of its own."""
    return Form(engine, (anchors,) if isinstance(anchors, str) else anchors, compiled_form(pattern), read)


def settling(form: Form) -> Form:
    """The same form, looked for only until it was seen often enough."""
    return structs.replace(form, settles=True)


def within_requests(form: Form) -> Form:
    """The same form, read in lines that log requests as well."""
    return structs.replace(form, in_requests=True)


def compiled_form(pattern: str) -> re.Pattern[str]:
    """The pattern with its number placeholders filled in."""
    return re.compile(pattern.replace("{N}", DIGITS).replace("{F}", FLOAT))
