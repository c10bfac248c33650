"""The flags of ``serve`` and of every other verb that starts it, derived from ``core/settings.py``.

A verb writes only its own options; ``with_settings_flags`` adds one option for each setting that has a flag and
hands all that were given to the verb as one dictionary, ready for ``load_settings``.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer
from msgspec import Meta
from rich.markup import escape

from kvfence.core.settings import Settings

_SPELLINGS = {
    "model.path": "--model",
    "model.name": "--model-name",
    "engine.kind": "--engine",
    "engine.prefill": "--prefill",
    "engine.decode": "--decode",
    "engine.key_file": "--engine-key-file",
    "transport.kind": "--transport",
    "transport.protocol": "--transport-protocol",
    "transport.device": "--transport-device",
    "pool.tokens": "--pool-tokens",
    "pool.prefill_tokens": "--prefill-pool-tokens",
    "pool.decode_tokens": "--decode-pool-tokens",
    "workers.prefill": "--prefill-workers",
    "workers.decode": "--decode-workers",
}
_WITHOUT_FLAG = frozenset({"limits"})
"""Sections that are set by file or environment alone."""


def _flags() -> dict[str, str]:
    return {
        key: _SPELLINGS.get(key, "--" + field.name.replace("_", "-"))
        for section in msgspec.structs.fields(Settings)
        if section.name not in _WITHOUT_FLAG
        for field in msgspec.structs.fields(section.type)
        for key in [f"{section.name}.{field.name}"]
    }


FLAGS: dict[str, str] = _flags()
"""Flag by dotted key."""


class Flags(msgspec.Struct, frozen=True):
    """What a verb received: the TOML file, if named, and the settings given as flags, by dotted key."""

    config: Path | None
    given: dict[str, object]


def with_settings_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give a verb ``--config`` and one option per setting.

    The verb takes ``flags: Flags`` as its first parameter and its own typer options after it.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    options = {_parameter_name(key): key for key in FLAGS}

    @wraps(function)
    def verb(config: Path | None = None, **arguments: object) -> None:
        given = {key: arguments.pop(name) for name, key in options.items()}
        function(Flags(config, {key: value for key, value in given.items() if value not in (None, [])}), **arguments)

    parameters = [*own, _config_option(), *(_option(key) for key in FLAGS)]
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    verb.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del verb.__wrapped__
    return verb


def _config_option() -> inspect.Parameter:
    option = typer.Option("--config", help="TOML file with settings; default: kvfence.toml where there is one")
    return _parameter("config", Annotated[Path | None, option])


def _option(key: str) -> inspect.Parameter:
    section, name = key.split(".")
    struct = next(field.type for field in msgspec.structs.fields(Settings) if field.name == section)
    field = next(field for field in msgspec.structs.fields(struct) if field.name == name)
    kind, *metas = get_args(field.type) if hasattr(field.type, "__metadata__") else (field.type,)
    description = next((meta.description for meta in metas if isinstance(meta, Meta) and meta.description), "")
    choices = f"one of {', '.join(get_args(kind))}; " if get_origin(kind) is Literal else ""
    default = ("off", "on")[field.default] if kind is bool else field.default
    shown = "" if default in ("", ()) else f" [default: {default}]"
    flag = f"{FLAGS[key]}/--no-{FLAGS[key][2:]}" if kind is bool else FLAGS[key]
    option = typer.Option(
        flag, help=escape(f"{choices}{description}{shown}"), show_default=False, rich_help_panel=_panel(section, kind)
    )
    # Literals stay text here: load_settings checks them and tells all problems at once. Several values are a list.
    origin = get_origin(kind)
    plain: Any = str if origin is Literal else list[str] if origin is tuple else kind
    return _parameter(_parameter_name(key), Annotated[plain | None, option])


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter_name(key: str) -> str:
    return "setting_" + key.replace(".", "_")


def _panel(section: str, kind: object) -> str:
    """Name a setting's panel; switches have one of their own, so that both their spellings fit a narrow terminal."""
    return "Settings: on or off" if kind is bool else f"Settings: {section}"
