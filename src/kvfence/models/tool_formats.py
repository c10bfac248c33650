"""How models write tool calls, as data: one row for each way, found by what the chat template says. No torch.

A model whose template takes tools and matches no row can be made to call (by a grammar), but what it writes of its own
accord is not read. Not for: reading an answer (``gateway/tool_calls.py``).
"""

from msgspec import Struct


class ToolFormat(Struct, frozen=True):
    """One way to write calls.

    ``marks``: the template has one of these texts, and none of ``never``. ``start`` and ``end`` stand round the JSON of
    one or more calls; without an ``end`` they reach to the end of the answer. ``arguments``: the field they stand in.
    ``bare``: an answer that begins with a brace is calls from its first character.
    """

    name: str
    marks: tuple[str, ...]
    start: str
    end: str = ""
    arguments: str = "arguments"
    never: tuple[str, ...] = ()
    bare: bool = False


TOOL_FORMATS = (
    ToolFormat("hermes", ("<tool_call>",), "<tool_call>", "</tool_call>", never=("<function=", "<arg_key>")),
    ToolFormat("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", never=("[ARGS]",)),
    ToolFormat("phi4", ("<|/tool_call|>",), "<|tool_call|>", "<|/tool_call|>"),
    ToolFormat("granite", ("<|tool_call|>",), "<|tool_call|>"),
    ToolFormat(
        "llama3",
        ('"parameters": dictionary of argument name', "<|python_tag|>"),
        "<|python_tag|>",
        arguments="parameters",
        bare=True,
    ),
)
"""Hermes is also Qwen 2.5 and 3, and SmolLM 3. The first row that matches counts."""


def tool_format_of(template: str) -> ToolFormat | None:
    """Find the row of a chat template."""
    for row in TOOL_FORMATS:
        if any(mark in template for mark in row.marks) and not any(mark in template for mark in row.never):
            return row
    return None
