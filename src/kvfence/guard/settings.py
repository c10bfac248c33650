"""What an operator sets: the mode and the shared key. Read from the environment alone.

An engine's command line belongs to the engine, so a plug-in has variables: ``KVFENCE_GUARD`` (enforce, the default, or
observe), ``KVFENCE_GUARD_KEY_FILE`` or ``KVFENCE_GUARD_KEY`` (at least 32 characters, the same on both roles),
``KVFENCE_GUARD_INSECURE=1`` instead of a key, for tests. ``KVFENCE_GUARD_TRACE``: a folder for traces; none without.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.guard.key import KEY_CHARS_MIN, Key

PREFIX = "KVFENCE_GUARD"


class Mode(StrEnum):
    """``enforce``: what does not hold is refused. ``observe``: it is counted, and the engine does as it would."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class GuardSettings(Struct, frozen=True):
    """One role's settings; both roles of a pair need the same key."""

    mode: Mode
    key: Key
    trace: Path | None = None

    @property
    def enforces(self) -> bool:
        """Is a refusal obeyed?"""
        return self.mode is Mode.ENFORCE


def load(environment: Mapping[str, str]) -> GuardSettings:
    """Read the settings.

    Raises:
        SettingsError: all that is wrong at once: an unknown mode, no key, a short one, a file that cannot be read.
    """
    problems: list[str] = []
    mode = environment.get(PREFIX, Mode.ENFORCE)
    if mode not in list(Mode):
        problems.append(f"{PREFIX}={mode}: write enforce or observe")
    key = _key(environment, problems)
    if problems:
        raise SettingsError(problems)
    trace = environment.get(f"{PREFIX}_TRACE")
    return GuardSettings(Mode(mode), key, Path(trace) if trace else None)


def _key(environment: Mapping[str, str], problems: list[str]) -> Key:
    path, text = environment.get(f"{PREFIX}_KEY_FILE"), environment.get(f"{PREFIX}_KEY")
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{PREFIX}_KEY_FILE: {type(error).__name__}; name a file that this process can read")
            return Key.none()
        if not text:
            problems.append(f"{PREFIX}_KEY_FILE: empty; put the secret there")
            return Key.none()
    if text:
        if len(text) < KEY_CHARS_MIN:
            problems.append(f"{PREFIX}_KEY: {len(text)} characters; at least {KEY_CHARS_MIN}, from a random source")
        return Key(text.encode())
    if environment.get(f"{PREFIX}_INSECURE") != "1":
        problems.append(
            f"no key: set {PREFIX}_KEY_FILE to the same secret on both roles, or {PREFIX}_INSECURE=1 to do without"
        )
    return Key.none()
