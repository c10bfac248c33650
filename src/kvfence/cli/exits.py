"""Exit codes, and how an error becomes one red line on stderr.

Every verb ends through here: ``0`` nothing found, ``1`` found something, ``2`` wrong usage, ``3`` could not tell,
``4`` our own fault. A verb that demonstrates exits 0 when what it expects was found and 1 when not.
"""

import os
import traceback
from enum import IntEnum

from kvfence.cli.render import print_error
from kvfence.core.errors import CapacityError, EvidenceError, KvfenceError, ModelError, SettingsError, TraceError
from kvfence.core.invariant import InvariantBroken


class ExitCode(IntEnum):
    """What the shell learns."""

    NOTHING_FOUND = 0
    FOUND = 1
    USAGE = 2
    COULD_NOT_TELL = 3
    OUR_FAULT = 4


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (SettingsError, ExitCode.USAGE),
    (CapacityError, ExitCode.USAGE),
    (ModelError, ExitCode.USAGE),
    (TraceError, ExitCode.COULD_NOT_TELL),
    (EvidenceError, ExitCode.USAGE),
    (KvfenceError, ExitCode.OUR_FAULT),
    (OSError, ExitCode.USAGE),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """Give the exit code of an error; what is not known here is our own fault."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.OUR_FAULT)


def report(error: BaseException) -> ExitCode:
    """Say on stderr what went wrong and give the exit code.

    The text of an error that is not ours is not shown: nobody has checked that it carries no prompt.
    ``KVFENCE_TRACEBACK=1`` shows where it came from.
    """
    headline, details = _describe(error)
    print_error(headline, details)
    if os.environ.get("KVFENCE_TRACEBACK") == "1":
        print_error("raised at:", [line.rstrip() for line in traceback.format_tb(error.__traceback__)])
    return exit_code_of(error)


def missing_extra(verb: str, extra: str, error: ModuleNotFoundError) -> ExitCode:
    """Say which extra a verb needs and how it is installed."""
    print_error(f"kvfence {verb} needs the extra '{extra}': pip install '.[{extra}]' (no module named '{error.name}')")
    return ExitCode.USAGE


def _describe(error: BaseException) -> tuple[str, list[str]]:
    if isinstance(error, SettingsError) and len(error.problems) > 1:
        return f"{len(error.problems)} settings are wrong:", error.problems
    if isinstance(error, InvariantBroken):
        return f"a bug in kvfence: {error}. Please report it (CONTRIBUTING.md)", []
    if isinstance(error, KvfenceError):
        headline, *details = str(error).splitlines() or [type(error).__name__]
        return headline, details
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", []
    return f"a bug in kvfence: {type(error).__name__} at {_place(error)}. Please report it (CONTRIBUTING.md)", []


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "an unknown place"
