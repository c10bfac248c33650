"""Two processes and one memory: writes that are stopped in the middle of a page, resumed late, or killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfence.core.errors import OwnershipError
from kvfence.core.pages import PageState
from kvfence.driver.numpy_ledger import NumpyLedger
from kvfence.kv.compare import BatchTable
from kvfence.kv.seal import pack_heads, verify_pages
from kvfence.kv.storage import MemoryFile, PoolBuffer, open_shared, pool_bytes
from kvfence.protocol.commands import Move
from kvfence.protocol.transitions import PageMove
from kvfence.wire.shm import record_parts
from tests.pools import LAYOUT, PREFILL, body_is, fill, tags_of

NUM_PAGES = 6
FIRST, PAGE = 3, 4
"""The writer's two destinations; what happens to ``PAGE`` is what the tests look at."""
FORMER, LATE = 0x11, 0x77
DEADLINE_S = 30.0
ROOT = Path(__file__).parents[3]
AFTER_HEAD = (PAGE, record_parts(LAYOUT)[0].stop)
BEFORE_HEAD = (FIRST, record_parts(LAYOUT)[-1].stop)
NEVER = (-1, -1)
ORIGINS = tags_of(PREFILL, 5, [0, 1])


class Writer:
    """A prefill process over its own pool (two sealed pages of ``LATE``) and our decode pool."""

    def __init__(self, files: list[MemoryFile], stop_at: tuple[int, int]) -> None:
        fds = [file.fd for file in files]
        command = [sys.executable, "-m", "tests.integration.wire.page_writer", *map(str, fds), str(NUM_PAGES)]
        self.process = subprocess.Popen([*command, *map(str, stop_at)], pass_fds=fds, cwd=ROOT)

    def wait_stopped(self) -> None:
        """Wait until the process has stopped itself inside the write."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.process.pid, os.WNOHANG | os.WUNTRACED)
            if pid:
                assert os.WIFSTOPPED(status), f"the writer ended with {status}"
                return
            time.sleep(0.01)
        raise AssertionError("the writer did not stop in time")

    def resume(self) -> None:
        """Let it finish, however late, and reap it."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.wait(DEADLINE_S) == 0

    def kill(self) -> None:
        """Kill it where it stands, if it still does, and reap it."""
        self.process.kill()
        self.process.wait(DEADLINE_S)


Start = Callable[[tuple[int, int]], Writer]


@pytest.fixture
def files() -> Iterator[list[MemoryFile]]:
    """Memory of a prefill and of a decode pool."""
    made = [open_shared(pool_bytes(LAYOUT, NUM_PAGES)) for _ in range(2)]
    yield made
    for file in made:
        file.close()


@pytest.fixture
def start(files: list[MemoryFile]) -> Iterator[Start]:
    """Start writers; none outlives its test, stopped or not."""
    writers: list[Writer] = []

    def begin(stop_at: tuple[int, int]) -> Writer:
        writers.append(Writer(files, stop_at))
        return writers[-1]

    yield begin
    for writer in writers:
        writer.kill()


@pytest.fixture
def decode(files: list[MemoryFile]) -> PoolBuffer:
    """Decode's pool, whose page 4 a former holder filled; prefill's pages are sealed and ready to be sent."""
    fill(PoolBuffer(files[0].buffer, LAYOUT, NUM_PAGES), ORIGINS, 8, LATE)
    pool = PoolBuffer(files[1].buffer, LAYOUT, NUM_PAGES)
    fill(pool, tags_of(PREFILL, 2, [PAGE]), 4, FORMER)
    return pool


def hand_on(decode: PoolBuffer, serial: int) -> BatchTable:
    """Give the page to a next holder, who writes, verifies and adopts it, as if it had been free."""
    tags = tags_of(PREFILL, serial, [PAGE])
    fill(decode, tags, 4, FORMER)
    assert verify_pages(decode, [PAGE], tags, 4).clean
    table = BatchTable(decode)
    table.add("next", [PAGE], pack_heads(PREFILL, serial, [PAGE]))
    assert len(table.compare()) == 0
    return table


def test_pages_written_by_another_process_verify(start: Start, decode: PoolBuffer) -> None:
    """The fast path, across processes: records arrive whole under prefill's origins."""
    writer = start(NEVER)
    assert writer.process.wait(DEADLINE_S) == 0
    assert verify_pages(decode, [FIRST, PAGE], ORIGINS, 8).clean


def test_a_late_write_into_a_page_in_use_is_seen(start: Start, decode: PoolBuffer) -> None:
    """A writer stopped between two pages and resumed later really writes the second, and the next comparison tells."""
    writer = start(BEFORE_HEAD)
    writer.wait_stopped()
    table = hand_on(decode, 6)
    writer.resume()
    assert body_is(decode, PAGE, LATE)
    assert table.pages_at(table.compare()) == [PAGE]


def test_a_torn_write_is_seen_by_whoever_reads_the_page(start: Start, decode: PoolBuffer) -> None:
    """Stopped behind the head, no byte of the body has landed and the reader is already warned."""
    table = hand_on(decode, 3)
    writer = start(AFTER_HEAD)
    writer.wait_stopped()
    assert body_is(decode, PAGE, FORMER)
    assert table.pages_at(table.compare()) == [PAGE]
    writer.resume()
    assert body_is(decode, PAGE, LATE)
    assert table.pages_at(table.compare()) == [PAGE]


def test_a_quarantined_page_waits_for_the_writers_death(start: Start, decode: PoolBuffer) -> None:
    """Revoked in mid-write, the page is granted to nobody; late bytes land in quarantine and hurt no one."""
    ledger = NumpyLedger(NUM_PAGES, PageState.FREE)
    ledger.apply(Move(PageMove.GRANT, 1, (PAGE,)))
    writer = start(AFTER_HEAD)
    writer.wait_stopped()
    ledger.apply(Move(PageMove.REVOKE, 1, (PAGE,)))
    with pytest.raises(OwnershipError, match="quarantined"):
        ledger.apply(Move(PageMove.GRANT, 2, (PAGE,)))
    writer.resume()
    assert body_is(decode, PAGE, LATE)
    ledger.apply(Move(PageMove.FENCE, 1, (PAGE,)))  # the writer has been reaped
    ledger.apply(Move(PageMove.GRANT, 2, (PAGE,)))
    assert len(hand_on(decode, 7).compare()) == 0


def test_without_quarantine_a_torn_write_gets_past_the_heads(start: Start, decode: PoolBuffer) -> None:
    """Guard quarantine-on-revoke taken away: the next holder's head covers the stray one, and its late bytes leak."""
    writer = start(AFTER_HEAD)
    writer.wait_stopped()
    table = hand_on(decode, 6)  # freed by a timer
    writer.resume()
    assert body_is(decode, PAGE, LATE)
    assert len(table.compare()) == 0


def test_nothing_lands_after_a_killed_writer_is_reaped(start: Start, decode: PoolBuffer) -> None:
    """Killed inside a page: the page is torn and shows it; once the writer is reaped it is as good as any."""
    writer = start(AFTER_HEAD)
    writer.wait_stopped()
    writer.kill()
    report = verify_pages(decode, [FIRST, PAGE], ORIGINS, 8)
    assert (report.bad_head, report.bad_tail) == ((), (PAGE,))
    assert body_is(decode, PAGE, FORMER)
    table = hand_on(decode, 7)  # fenced
    assert len(table.compare()) == 0
    assert body_is(decode, PAGE, FORMER)
