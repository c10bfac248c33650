"""Tool calls: what may be called, the grammar of calls that must be made, and calls read out of an answer's text.

A call leaves whole, once it is complete and names a function that was offered; text that does not parse as calls is
content, and none of it is lost. The arguments of a forced function leave as they come: a grammar holds them.
Not for: how models write calls (``models/tool_formats.py``).
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from kvfence.gateway.openai import TOOLS_MAX, ChatBody, NamedTool, Tool
from kvfence.gateway.pieces import CallPart
from kvfence.gateway.responses import Failure, refuse_field
from kvfence.models.grammar import GrammarRefused, grammar_of_schema
from kvfence.models.tool_formats import ToolFormat

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_BETWEEN = " \t\r\n,;"
LOOKED_AT_MAX = 4
"""Tools that are looked at one by one, once all together were refused."""


class Calls(Struct, frozen=True):
    """How calls are read out of an answer.

    ``named``: the one function whose arguments the answer is. ``form``: None where the answer is a list of calls.
    """

    names: frozenset[str]
    form: ToolFormat | None = None
    named: str = ""
    grammar: str = ""

    @property
    def special(self) -> tuple[str, ...]:
        """Tokens whose names are text, as calls stand between them."""
        return tuple(mark for mark in (self.form.start, self.form.end) if mark) if self.form is not None else ()

    def reader(self) -> "CallReader":
        """Begin to read one answer."""
        if self.named:
            return NamedReader(self.named)
        return WrittenReader(self.names, self.form) if self.form is not None else ListReader(self.names)


def plan_calls(chat: ChatBody, takes_tools: bool, form: ToolFormat | None) -> Calls | Failure | None:
    """Say how calls are read, None where there is nothing to call; the failure names a field."""
    if not chat.tools:
        if chat.tool_choice in (None, "none", "auto"):
            return None
        return refuse_field("tool_choice", "tool_choice asks for a call, but there are no tools.")
    failure = _refuse_tools(chat.tools)
    if failure is not None or chat.tool_choice == "none":
        return failure
    if not takes_tools:
        message = "This model's chat template cannot show tools to the model; leave tools out."
        return refuse_field("tools", message, "unsupported_parameter")
    names = frozenset(tool.function.name for tool in chat.tools)
    if isinstance(chat.tool_choice, NamedTool):
        return _plan_named(chat.tools, chat.tool_choice.function.name)
    if chat.tool_choice == "required":
        return _plan_required(chat.tools, parallel=chat.parallel_tool_calls is not False)
    if form is None:
        message = "How this model writes calls is not known here; use tool_choice required, or name a function."
        return refuse_field("tool_choice", message, "unsupported_parameter")
    return Calls(names, form)


def _refuse_tools(tools: Sequence[Tool]) -> Failure | None:
    if len(tools) > TOOLS_MAX:
        return refuse_field("tools", f"At most {TOOLS_MAX} tools are allowed.")
    if len({tool.function.name for tool in tools}) < len(tools):
        return refuse_field("tools", "Two tools have the same name.")
    for index, tool in enumerate(tools):
        if not isinstance(_parameters(tool), dict):
            where = f"tools[{index}].function.parameters"
            return refuse_field(where, f"{where} is a JSON schema, an object.")
    return None


def _parameters(tool: Tool) -> Any:
    given = msgspec.json.decode(tool.function.parameters)
    return _NO_ARGUMENTS if given is None else given


def _object_schema(tool: Tool) -> dict[str, Any]:
    """Arguments are an object, also where the schema does not say so."""
    return {"type": "object", **_parameters(tool)}


def _moved(schema: Any, index: int) -> Any:
    """Let references within one function's schema point to where it stands in the schema of all calls."""
    if isinstance(schema, list):
        return [_moved(each, index) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, index) for key, value in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = f"#/items/anyOf/{index}/properties/arguments{target[1:]}"
    return moved


def _plan_named(tools: Sequence[Tool], name: str) -> Calls | Failure:
    for index, tool in enumerate(tools):
        if tool.function.name == name:
            return _with_grammar(Calls(frozenset({name}), named=name), _object_schema(tool), f"tools[{index}]")
    return refuse_field("tool_choice", "tool_choice names a function that is none of the tools.")


def _plan_required(tools: Sequence[Tool], parallel: bool) -> Calls | Failure:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": _moved(_object_schema(tool), index)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    schema = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **({} if parallel else {"maxItems": 1})}
    plan = _with_grammar(Calls(frozenset(tool.function.name for tool in tools)), schema, "tools")
    return _name_culprit(tools, plan) if isinstance(plan, Failure) else plan


def _name_culprit(tools: Sequence[Tool], failure: Failure) -> Failure:
    """Name the tool that cannot be enforced alone, if it is among the first: each look costs as much as a schema."""
    for index, tool in enumerate(tools[:LOOKED_AT_MAX]):
        alone = _with_grammar(Calls(frozenset()), _object_schema(tool), f"tools[{index}]")
        if isinstance(alone, Failure):
            return alone
    return failure


def _with_grammar(calls: Calls, schema: object, where: str) -> Calls | Failure:
    try:
        return msgspec.structs.replace(calls, grammar=grammar_of_schema(msgspec.json.encode(schema)))
    except GrammarRefused as refusal:
        param = "tools" if where == "tools" else f"{where}.function.parameters"
        return refuse_field(param, f"The arguments of this call cannot be enforced: {refusal}.", "invalid_json_schema")


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Give tools as chat templates want them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": _parameters(tool),
            },
        }
        for tool in tools
    ]


# ---- reading ---------------------------------------------------------------------------------------------------------

Part = str | CallPart


class CallReader:
    """Reads one answer: text in, content and calls out, in order."""

    def __init__(self) -> None:
        self.num_calls = 0

    def push(self, text: str) -> list[Part]:
        """Take more text; give what is certain by now."""
        raise NotImplementedError

    def flush(self) -> list[Part]:
        """Give what is left: the answer is over."""
        raise NotImplementedError

    @property
    def reason(self) -> str:
        """Give finish_reason of an answer that ended by itself."""
        return "tool_calls" if self.num_calls else "stop"

    def _whole(self, calls: list[tuple[str, str]]) -> list[Part]:
        """Number calls that are complete."""
        parts = [CallPart(self.num_calls + at, text, new_call_id(), name) for at, (name, text) in enumerate(calls)]
        self.num_calls += len(calls)
        return [*parts]


class NamedReader(CallReader):
    """The answer is the arguments of one function. OpenAI says ``stop`` at its end, and so do we."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def push(self, text: str) -> list[Part]:
        """Pass arguments on."""
        if not text:
            return []
        begins, self.num_calls = self.num_calls == 0, 1
        return [CallPart(0, text, new_call_id(), self._name) if begins else CallPart(0, text)]

    def flush(self) -> list[Part]:
        """Nothing is held back."""
        return []

    @property
    def reason(self) -> str:
        """Give finish_reason of an answer that ended by itself."""
        return "stop"


class ListReader(CallReader):
    """The answer is a JSON list of calls; one that broke off is content."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self._names, self._text = names, ""

    def push(self, text: str) -> list[Part]:
        """Keep it: a call is given when it is known to be whole."""
        self._text += text
        return []

    def flush(self) -> list[Part]:
        """Give all calls, or the text."""
        calls = parse_calls(self._text, self._names, "arguments")
        return self._whole(calls) if calls else [self._text]


class WrittenReader(CallReader):
    """The model calls, or not, in the way it was taught.

    Holds: text that may be the start of a call; the text of a call that has begun; white space round calls, which is
    no content.
    """

    def __init__(self, names: frozenset[str], form: ToolFormat) -> None:
        super().__init__()
        self._names, self._form = names, form
        self._held, self._space = "", ""
        self._inside, self._begun = False, False

    def push(self, text: str) -> list[Part]:
        """Take more text; give what is certain by now."""
        self._held += text
        out: list[Part] = []
        while self._held and (more := self._step()) is not None:
            out += more
        return out

    def _step(self) -> list[Part] | None:
        """Take one step over what is held; None where more text must come first."""
        if self._inside:
            return self._step_inside()
        if self._form.bare and not self._begun and not self._held.strip():
            return None
        if self._form.bare and not self._begun and self._held.lstrip().startswith("{"):
            self._begun = self._inside = True
            return []
        self._begun = True
        before, mark, rest = self._held.partition(self._form.start)
        if mark:
            self._held, self._inside = mark + rest, True
            return self._content(before)
        keep = overlap(self._held, self._form.start)
        content, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._content(content) if content else None

    def _step_inside(self) -> list[Part] | None:
        end = self._form.end
        at = self._held.find(end, len(self._form.start)) if end else -1
        if at < 0:
            return None
        written, self._held = self._held[: at + len(end)], self._held[at + len(end) :]
        return self._close(written)

    def _close(self, written: str) -> list[Part]:
        """End a call: it, or its text where it is none."""
        self._inside = False
        payload = written.strip().removeprefix(self._form.start)
        payload = payload.removesuffix(self._form.end) if self._form.end else payload
        calls = parse_calls(payload, self._names, self._form.arguments)
        if not calls:
            return self._content(written)
        self._space = ""
        return self._whole(calls)

    def _content(self, text: str) -> list[Part]:
        """White space waits until it is known to stand before content."""
        seen = self._space + text
        shown = seen.rstrip() if text.strip() else ""
        self._space = seen[len(shown) :]
        return [shown] if shown else []

    def flush(self) -> list[Part]:
        """Give what is left: a call may end with the answer."""
        held, self._held = self._held, ""
        out = self._close(held) if self._inside else self._content(held)
        if not self.num_calls and self._space:
            out.append(self._space)
        return out


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that begins the mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


def new_call_id() -> str:
    """Give an id that no other call has."""
    return f"call_{secrets.token_hex(12)}"


def parse_calls(text: str, names: frozenset[str], arguments: str) -> list[tuple[str, str]]:
    """Read the JSON of calls: objects or lists of them; [] unless all of it is calls to functions that were offered.

    Returns:
        Name and JSON text of the arguments, for each.
    """
    calls: list[tuple[str, str]] = []
    try:
        for value in _values(text):
            for each in value if isinstance(value, list) else [value]:
                given = each.get(arguments, each.get("arguments"))
                if each["name"] not in names or not isinstance(given, dict):
                    return []
                calls.append((each["name"], _json_text(given)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return calls


def _json_text(value: object) -> str:
    """Give JSON that is also UTF-8: half a character, which JSON can name, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _values(text: str) -> Iterator[Any]:
    """Read JSON values one after the other."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse_constant), 0
    while (at := len(text) - len(text[at:].lstrip(_BETWEEN))) < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("JSON has neither NaN nor infinity")
