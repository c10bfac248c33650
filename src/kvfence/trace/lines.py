"""An event, a command or a decision in one line, as a person reads it. Not for: machines, which read the trace."""

from enum import Enum
from typing import Any

from msgspec import Struct

from kvfence.core.ids import AttemptId

SHOWN_MAX = 6
"""Of a longer list the first are shown, and how many more there are."""


def line_of(value: Any) -> str:
    """Give a value's kind and fields; lives are cut to eight digits."""
    match value:
        case AttemptId():
            return f"{line_of(value.gateway)}/{value.counter}"
        case Struct():
            names = (name for name in value.__struct_fields__ if getattr(value, name) not in (None, "", ()))
            fields = ", ".join(f"{name}={line_of(getattr(value, name))}" for name in names)
            return f"{type(value).__name__}({fields})"
        case Enum():
            return str(value.value)
        case tuple():
            more = [f"and {len(value) - SHOWN_MAX} more"] if len(value) > SHOWN_MAX else []
            return "[" + ", ".join([*map(line_of, value[:SHOWN_MAX]), *more]) + "]"
        case str() if len(value) == 32:
            return value.lstrip("0")[:8] or "former life"
    return str(value)
