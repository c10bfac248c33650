"""When ``kvfence serve`` is over."""

import asyncio
import os
import signal
from typing import Any

import pytest

from kvfence.cli.exits import ExitCode
from kvfence.cli.serve import HeldLog, _until_over
from kvfence.cli.signals import drain, end_in_order


class Broken:
    """A server whose parts can break."""

    def __init__(self) -> None:
        self.supervisor = self
        self.failed = asyncio.Event()
        self.failure = "KeyError"


async def test_a_signal_ends_it_in_order() -> None:
    """Code 0."""
    server: Any = Broken()
    stop = asyncio.Event()
    waiting = asyncio.create_task(_until_over(server, stop))
    stop.set()
    assert await asyncio.wait_for(waiting, 5) == ExitCode.NOTHING_FOUND


async def test_what_broke_ends_it_as_our_own_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that can answer nothing any more does not stay; it says what broke, and exits with 4."""
    server: Any = Broken()
    waiting = asyncio.create_task(_until_over(server, asyncio.Event()))
    server.failed.set()
    assert await asyncio.wait_for(waiting, 5) == ExitCode.OUR_FAULT
    assert "KeyError" in capsys.readouterr().err


class Draining:
    """A server with requests that do not end by themselves."""

    def __init__(self) -> None:
        self.timeout_s = 0.0
        self.ended = False

    async def drain(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_a_second_signal_ends_it_at_once() -> None:
    """The first lets open requests end; the second waits for none of them."""
    server: Any = Draining()
    stop = asyncio.Event()
    hurry = end_in_order(stop)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.wait()
            draining = asyncio.create_task(drain(server, 30.0, hurry))
            await asyncio.sleep(0)
            assert not draining.done()
            os.kill(os.getpid(), signal.SIGTERM)
            await draining
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    assert (server.timeout_s, server.ended) == (30.0, True)


def test_log_lines_wait_until_what_is_shown_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """No line stands in the middle of an answer, none is lost, and later ones come at once."""
    log = HeldLog()
    log.write("during\n")
    assert capsys.readouterr().err == ""
    log.release()
    log.write("after\n")
    log.release()
    assert capsys.readouterr().err == "during\nafter\n"
