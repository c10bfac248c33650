"""The messages of a chat: which are refused, and how the chat template sees the others.

Not for: rendering (``models/chat.py``).
"""

from typing import Any

from msgspec import DecodeError, json

from kvfence.gateway.openai import ROLES, ChatMessage, ToolCall
from kvfence.gateway.responses import Failure, refuse_field


def refuse_messages(messages: list[ChatMessage]) -> Failure | None:
    """Name the first message that is wrong."""
    if not messages:
        return refuse_field("messages", "messages is empty; give at least one.")
    for index, message in enumerate(messages):
        failure = _refuse_message(f"messages[{index}]", message)
        if failure is not None:
            return failure
    return None


def _refuse_message(at: str, message: ChatMessage) -> Failure | None:
    if message.role not in ROLES:
        return refuse_field(f"{at}.role", f"{at}.role is one of {', '.join(ROLES)}.")
    if message.tool_calls and message.role != "assistant":
        return refuse_field(f"{at}.tool_calls", "Only an assistant's message has tool_calls.")
    if message.content is None and not message.tool_calls:
        return refuse_field(f"{at}.content", f"{at}.content is missing.")
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type != "text":
            where = f"{at}.content[{index}].type"
            return refuse_field(where, "Only parts of type text are supported here.", "unsupported_parameter")
        if part.text is None:
            return refuse_field(f"{at}.content[{index}].text", "A part of type text has a text.")
    return None


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]] | Failure:
    """Give messages as chat templates want them: text as a string, a developer as a system, arguments as an object."""
    given: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        seen: dict[str, Any] = {"role": role, "content": _text_of(message)}
        if message.tool_calls:
            calls = _template_calls(f"messages[{index}].tool_calls", message.tool_calls)
            if isinstance(calls, Failure):
                return calls
            seen["tool_calls"] = calls
        if message.role == "tool":
            seen |= {name: value for name in ("name", "tool_call_id") if (value := getattr(message, name)) is not None}
        given.append(seen)
    return given


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "".join(part.text or "" for part in message.content)
    return message.content or ""


def _template_calls(at: str, calls: list[ToolCall]) -> list[dict[str, Any]] | Failure:
    given = []
    for index, call in enumerate(calls):
        try:
            arguments: object = json.decode(call.function.arguments or "{}")
        except (DecodeError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            where = f"{at}[{index}].function.arguments"
            return refuse_field(where, f"{where} is the JSON text of an object.")
        function = {"name": call.function.name, "arguments": arguments}
        given.append({"id": call.id or f"call_{index}", "type": "function", "function": function})
    return given
