"""The only place where settings are loaded: defaults < TOML < environment < flags.

Unknown keys are refused with the nearest known one, all problems are told at once, and each value remembers
where it came from. Keys are dotted (``pool.page_size``); in the environment ``KVFENCE_POOL__PAGE_SIZE``.

Not for: what the settings mean (``core/settings.py``) or how flags are spelt (``settings_flags.py``).
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from kvfence.cli.settings_flags import FLAGS
from kvfence.core.errors import SettingsError
from kvfence.core.invariant import require
from kvfence.core.settings import Settings

CONFIG_FILE = Path("kvfence.toml")
"""Read from the current folder when ``--config`` names no other; it need not exist."""

PREFIX = "KVFENCE_"
NOT_SETTINGS = frozenset({"KVFENCE_TRACEBACK", "KVFENCE_CACHE"})
"""Variables of ours that are no settings of a deployment."""


class SettingField(Struct, frozen=True):
    """One thing a user can set."""

    key: str
    type: Any
    default: object
    description: str


class LoadedSettings(Struct, frozen=True):
    """Settings, and for each dotted key where its value came from."""

    settings: Settings
    sources: dict[str, str]

    def rows(self) -> list[tuple[str, object, str]]:
        """Give (key, value, source) of every setting, in the order of ``core/settings.py``."""
        sections = msgspec.to_builtins(self.settings)
        return [
            (f"{section}.{name}", value, self.sources[f"{section}.{name}"])
            for section, values in sections.items()
            for name, value in values.items()
        ]


class _Layer(Struct, frozen=True):
    """Values of one source, before they are checked. ``strict``: numbers are not read out of text."""

    values: dict[str, object]
    names: dict[str, str]
    strict: bool = True


def setting_fields() -> dict[str, SettingField]:
    """Give every setting by its dotted key."""
    return {field.key: field for field in _walk()}


def load_settings(
    config: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> LoadedSettings:
    """Merge defaults, the TOML file, the environment and flags into checked settings.

    ``config`` must exist if given; None reads ``kvfence.toml`` where there is one. ``environ`` is usually
    ``os.environ``. ``flags`` are by dotted key; None means that the flag was not given.

    Raises:
        SettingsError: any value or key is wrong; ``problems`` lists all of them.
    """
    fields = setting_fields()
    problems: list[str] = []
    layers = (
        _toml_layer(config, fields, problems),
        _environment_layer(environ or {}, fields, problems),
        _flags_layer(flags or {}, fields),
    )
    values = {key: field.default for key, field in fields.items()}
    sources = dict.fromkeys(fields, "default")
    for layer in layers:
        for key, raw in layer.values.items():
            try:
                values[key] = _convert(raw, fields[key].type, layer.strict)
                sources[key] = layer.names[key]
            except msgspec.ValidationError as error:
                problems.append(f"{key} ({layer.names[key]}): {_lower_first(str(error))}")
    if problems:
        raise SettingsError(problems)
    return LoadedSettings(settings=_build(values), sources=sources)


def _walk() -> Iterator[SettingField]:
    for section in msgspec.structs.fields(Settings):
        for field in msgspec.structs.fields(section.type):
            metas = get_args(field.type)[1:] if hasattr(field.type, "__metadata__") else ()
            description = next((meta.description for meta in metas if isinstance(meta, Meta)), None)
            yield SettingField(f"{section.name}.{field.name}", field.type, field.default, description or "")


def _build(values: Mapping[str, object]) -> Settings:
    nested: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        nested.setdefault(section, {})[name] = value
    return msgspec.convert(nested, Settings)


def _convert(raw: object, kind: Any, strict: bool) -> object:
    base = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    if base is str and isinstance(raw, int) and not isinstance(raw, bool):
        return str(raw)  # `context = 4096` and `context = "auto"` are both what people write
    if get_origin(base) is tuple:
        raw = _split(raw)
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError:
        if get_origin(base) is not Literal:
            raise
        raise msgspec.ValidationError(f"must be one of {', '.join(map(str, get_args(base)))}") from None


def _split(raw: object) -> object:
    """Give a list of texts from one with commas, or from several; anything else is left to be refused."""
    several = [raw] if isinstance(raw, str) else raw
    if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
        return raw
    return [part.strip() for each in several for part in each.split(",") if part.strip()]


def _toml_layer(config: Path | None, fields: Mapping[str, SettingField], problems: list[str]) -> _Layer:
    path = config or CONFIG_FILE
    if config is None and not path.exists():
        return _Layer({}, {})
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}; give --config a readable TOML file")
        return _Layer({}, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not valid TOML: {error}")
        return _Layer({}, {})
    values: dict[str, object] = {}
    for section, content in document.items():
        if not isinstance(content, dict):
            problems.append(_unknown(str(path), section, fields))
            continue
        for name, value in content.items():
            key = f"{section}.{name}"
            if key in fields:
                values[key] = value
            else:
                problems.append(_unknown(str(path), key, fields))
    return _Layer(values, dict.fromkeys(values, str(path)))


def _environment_layer(environ: Mapping[str, str], fields: Mapping[str, SettingField], problems: list[str]) -> _Layer:
    variables = {variable_of(key): key for key in fields}
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable in variables:
            values[variables[variable]] = environ[variable]
            names[variables[variable]] = variable
        else:
            problems.append(_unknown("environment", variable, variables))
    return _Layer(values, names, strict=False)


def _flags_layer(flags: Mapping[str, object], fields: Mapping[str, SettingField]) -> _Layer:
    given = {key: value for key, value in flags.items() if value is not None}
    require(set(given) <= set(fields), f"flags for settings that do not exist: {sorted(set(given) - set(fields))}")
    return _Layer(given, {key: FLAGS.get(key, "flag") for key in given}, strict=False)


def variable_of(key: str) -> str:
    """Name the environment variable of a dotted key."""
    return PREFIX + key.upper().replace(".", "__")


def _unknown(where: str, key: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `kvfence config show` lists the known ones"
    return f"{where}: unknown setting {key}{hint}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
