"""``kvfence serve --engine``: the gateway alone, before another engine's pairs, until a signal.

Not for: putting it together (``compose_engine.py``).
"""

import asyncio

from kvfence.cli.compose import load_registry
from kvfence.cli.compose_engine import require_engine_settings, running_front
from kvfence.cli.exits import ExitCode
from kvfence.cli.load_settings import LoadedSettings
from kvfence.cli.render import print_note, progress
from kvfence.cli.signals import drain, end_in_order, stop_on_signals
from kvfence.core.errors import SettingsError
from kvfence.models.checkpoint import resolve_checkpoint


def require_no_own_options(*, demo: bool, observe: bool) -> None:
    """Refuse what only our own workers can do.

    Raises:
        SettingsError: one of them was asked for.
    """
    asked = [name for name, given in (("--demo", demo), ("--observe", observe)) if given]
    if asked:
        raise SettingsError([f"{', '.join(asked)}: of kvfence's own workers; leave out before another engine"])


async def serve_engine(loaded: LoadedSettings) -> int:
    """Serve until a signal, then let open requests end.

    Raises:
        SettingsError: settings that do not go together, see ``require_engine_settings``.
        ModelError: the checkpoint's tokenizer cannot be read.
    """
    settings = loaded.settings
    require_engine_settings(settings, [key for key, source in loaded.sources.items() if source != "default"])
    registry, exposure = load_registry(settings)
    if exposure:
        print_note(f"warning: {exposure}")
    with progress("tokenizer") as report:
        checkpoint = resolve_checkpoint(settings.model.path, report, weights=False)
    stop = stop_on_signals()
    try:
        async with running_front(settings, registry, checkpoint) as front:
            hurry = end_in_order(stop)
            for problem in front.problems:
                print_note(f"warning: no request goes to {problem}")
            print_note(f"ready: {front.address.url}/v1  {front.model} on {settings.engine.kind}; serving until Ctrl-C")
            await stop.wait()
            timeout_s = settings.workers.drain_timeout_s
            print_note(f"stopping: open requests get {timeout_s:g} s to end; once more ends them now")
            await drain(front.dispatcher, timeout_s, hurry)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        print_note("stopped before it was ready")
    return int(ExitCode.NOTHING_FOUND)
