"""Files that a verb will write at its end: refused at its beginning where they cannot be."""

import os
from collections.abc import Mapping
from pathlib import Path

from kvfence.core.errors import SettingsError


def refuse_unwritable(paths: Mapping[str, Path | None]) -> None:
    """Refuse paths that cannot be written: a result costs too much to find that out afterwards. ``paths``: by option.

    Raises:
        SettingsError: names every one of them.
    """
    named = {option: path for option, path in paths.items() if path is not None}
    places = [path.absolute() for path in named.values()]
    found = [(option, path, _hindrance(path)) for option, path in named.items()]
    found += [(option, path, "named twice") for option, path in named.items() if places.count(path.absolute()) > 1]
    if wrong := [f"{option} {path}: {why}" for option, path, why in found if why]:
        raise SettingsError(wrong)


def _hindrance(path: Path) -> str:
    """Say what keeps a file from being written there; empty: nothing."""
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        return f"{error.strerror}; name another file"
    if is_folder:
        return "this is a folder; name a file in it"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it first"
    if not os.access(path if exists else path.parent, os.W_OK):
        return "it may not be written; name another file, or change its permissions"
    return ""
