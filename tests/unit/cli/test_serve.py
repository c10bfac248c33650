"""When ``kvfence serve`` is over."""

import asyncio
from typing import Any

import pytest

from kvfence.cli.exits import ExitCode
from kvfence.cli.serve import HeldLog, _until_over


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


def test_log_lines_wait_until_what_is_shown_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """No line stands in the middle of an answer, none is lost, and later ones come at once."""
    log = HeldLog()
    log.write("during\n")
    assert capsys.readouterr().err == ""
    log.release()
    log.write("after\n")
    log.release()
    assert capsys.readouterr().err == "during\nafter\n"
