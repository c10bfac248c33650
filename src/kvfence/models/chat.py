"""Render a checkpoint's chat template, in a sandbox. No torch.

Not for: tokenising the result (``tokenizer.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvfence.core.errors import ModelError
from kvfence.models.tool_formats import ToolFormat, tool_format_of


class ChatRefused(ValueError):
    """The template refuses these messages (roles out of order, a field missing); never carries their text."""


class ChatTemplate:
    """A compiled chat template.

    Raises:
        ModelError: the template does not compile.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._source, self._variables = source, dict(variables)
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ModelError(f"the model's chat template does not compile ({type(error).__name__}).") from None

    @property
    def tool_format(self) -> ToolFormat | None:
        """How this model writes calls, where that is known."""
        return tool_format_of(self._source) if self.takes_tools else None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Give the prompt that ends where the assistant's answer begins.

        Raises:
            ChatRefused: the template refuses the messages; its reason is shown only if it is a literal of the
                template, so that no message text can be in it.
        """
        try:
            given = {"tools": list(tools)} if tools else {}
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **given, **self._variables
            )
        except TemplateError as error:
            reason = error.message or ""
            shown = f": {reason}" if reason and reason in self._source else ""
            raise ChatRefused(f"the model's chat template refuses these messages{shown}") from None
        except Exception as error:  # noqa: BLE001 - a template is a program: whatever it trips over is the messages' shape
            raise ChatRefused(f"the model's chat template cannot use these messages ({type(error).__name__})") from None


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
