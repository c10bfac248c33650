"""The entry point: SGLang calls ``activate`` in each of its processes before anything else is made.

What is wrong ends the process: SGLang logs a plug-in's exception and serves without it, which is worse.
"""

import os
import sys
from typing import Any

from kvfence.core.errors import SettingsError
from kvfence.guard.sglang.points import POINTS, found

ON = "KVFENCE_GUARD"


def activate() -> None:
    """Put the guard in, or end the process with what is missing.

    Where ``KVFENCE_GUARD=off``, nothing is done; that is the whole of the way back.
    """
    if os.environ.get(ON) == "off":
        return
    try:
        from kvfence.guard import settings
        from kvfence.guard.sglang.wiring import Wiring

        put_in(Wiring(settings.load(os.environ)))
    except SettingsError as error:
        _end(str(error))
    except Exception as error:  # noqa: BLE001  whatever it is, SGLang would log it and serve without the guard
        _end(f"{type(error).__name__}: {error}")


def put_in(wiring: Any) -> None:
    """Tell SGLang what to wrap.

    Raises:
        SettingsError: this release lacks a point, by its name.
    """
    from sglang.srt.plugins.hook_registry import (  # type: ignore[import-not-found, unused-ignore]
        HookRegistry,
        HookType,
    )

    names = {point: found(point) for point in POINTS}
    missing = [point.names[0] for point, name in names.items() if name is None]
    if missing:
        raise SettingsError([f"this SGLang has no {name}: the guard does not know this release" for name in missing])
    for point, name in names.items():
        HookRegistry.register(name, _ending(wiring.hook(point.key)), HookType(point.how))
    wiring.expect_hooks(list(names.values()))


def _ending(hook: Any) -> Any:
    """A hook that finds a wrong setting ends the process, wherever it runs."""

    def wrapped(*given: Any, **named: Any) -> Any:
        try:
            return hook(*given, **named)
        except SettingsError as error:
            return _end(str(error))

    return wrapped


def _end(reason: str) -> None:
    sys.stderr.write("".join(f"kvfence guard: {line}\n" for line in reason.splitlines()))
    sys.stderr.flush()
    os._exit(2)
