"""Signals while a server runs: the first ends it in order, the second at once.

Not for: what ending means (``serve.py``, ``serve_engine.py``).
"""

import asyncio
import contextlib
import signal
from typing import Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals() -> asyncio.Event:
    """Until the server is ready, a signal breaks off its start."""
    stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()

    def break_off() -> None:
        stop.set()
        if task is not None:
            task.cancel()

    for number in SIGNALS:
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, break_off)
    return stop


def end_in_order(stop: asyncio.Event) -> asyncio.Event:
    """From now on a signal lets open requests end. Returns: set by a second signal."""
    hurry = asyncio.Event()

    def end() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in SIGNALS:
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, end)
    return hurry


class Drains(Protocol):
    """What admits requests."""

    async def drain(self, timeout_s: float) -> None:
        """Admit no more, and let open ones end within a bound."""
        ...


async def drain(dispatcher: Drains, timeout_s: float, hurry: asyncio.Event) -> None:
    """Admit no more and let open requests end, within a bound or until a second signal."""
    draining = asyncio.create_task(dispatcher.drain(timeout_s))
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurrying):
        task.cancel()
    await asyncio.gather(draining, hurrying, return_exceptions=True)
