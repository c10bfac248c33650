"""Workers and supervisors that die: every client hears so, successors serve, and nothing is left behind."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest

from kvfence.protocol.messages import EndReason
from tests.integration.runtime.arithmetic_prefill import SECRET
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import ROOT, Pair, Scene, running_pair, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def is_gone(pid: int) -> bool:
    """Whether a process is dead, reaped or not: an orphan's new parent may take its time."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_prefill_killed_during_a_transfer(pair: Pair) -> None:
    """Its request ends as lost, a running sequence ends right, and its successor serves."""
    restarts = pair.restarts("prefill")
    pair.faults.hold(40)
    running = pair.stream(range(30), 60)
    await running.reach(10)
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    lost = pair.stream(range(500, 550), 20)
    await until("a write hangs", pair.faults.fired)
    pair.signal("prefill", signal.SIGKILL)
    assert (await lost.finish(), lost.tokens) == (EndReason.WORKER_LOST, [])
    pair.faults.let_go()
    assert await running.finish() is EndReason.LENGTH
    assert running.right
    await pair.ready(restarts + 1, "prefill")
    await pair.all_free()
    await pair.works()


async def test_decode_killed_while_tokens_come_and_pages_land(pair: Pair) -> None:
    """Both requests end as lost, prefill lives on and its write ends in a pool nobody has, and a successor serves."""
    restarts, prefill = pair.restarts("decode"), pair.pid("prefill")
    pair.faults.hold(40)
    running = pair.stream(range(30), 60)
    await running.reach(10)
    pair.faults.hang()
    pair.faults.arm(Fault("hang"))
    landing = pair.stream(range(500, 550), 20)
    await until("a write hangs", pair.faults.fired)
    pair.signal("decode", signal.SIGKILL)
    assert await running.finish() is EndReason.WORKER_LOST
    assert running.right
    assert (await landing.finish(), landing.tokens) == (EndReason.WORKER_LOST, [])
    pair.faults.let_go()
    await pair.ready(restarts + 1, "decode")
    await pair.all_free()
    await pair.works()
    assert pair.pid("prefill") == prefill


async def test_both_killed_at_once(pair: Pair) -> None:
    """Each is replaced once, although neither finds the other when it comes back."""
    restarts = dict(pair.supervisor.restarts)
    pair.signal("prefill", signal.SIGKILL)
    pair.signal("decode", signal.SIGKILL)
    for slot, count in restarts.items():
        await pair.ready(count + 1, slot.role)
    await pair.all_free()
    await pair.works()
    assert pair.supervisor.restarts == {slot: count + 1 for slot, count in restarts.items()}


async def test_an_error_in_a_task_ends_its_worker_without_its_text(pair: Pair) -> None:
    """A write that raises is not a request that hangs: the worker dies, says what kind of error, and is replaced."""
    restarts = pair.restarts("prefill")
    pair.faults.arm(Fault("break"))
    lost = pair.stream(range(50), 20)
    assert await lost.finish() is EndReason.WORKER_LOST
    await pair.ready(restarts + 1, "prefill")
    assert "RuntimeError" in pair.log()
    assert SECRET not in pair.log()
    await pair.all_free()
    await pair.works()


async def test_a_page_table_that_disagrees_with_its_node_ends_the_worker(pair: Pair) -> None:
    """The property ledger-agrees holds live: a worker that breaks it does not serve on."""
    restarts = pair.restarts("prefill")
    pair.faults.arm(Fault("forget"))
    await pair.ready(restarts + 1, "prefill")
    assert "disagree about pages [0]" in pair.log()
    await pair.all_free()
    await pair.works()


async def test_a_machine_that_starts_no_process_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor that cannot be started is tried again; the server stays."""
    async with running_pair(Scene(), tmp_path) as pair:
        monkeypatch.setenv("LARGER_THAN_ANY_ARGUMENT", "x" * (1 << 20))
        pair.signal("prefill", signal.SIGKILL)
        await until("it was tried twice", lambda: pair.restarts("prefill") >= 2)
        assert not pair.supervisor.failed.is_set()
        assert "no process can be started: Argument list too long" in pair.log()
        monkeypatch.undo()
        await pair.ready(2, "prefill")
        await pair.works()


async def test_stop_ends_requests_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Open requests are told of the shutdown; no process, socket, folder or complaint is left; no more is admitted."""
    async with running_pair(Scene(), tmp_path) as pair:
        pids, control_dir = [pair.pid("prefill"), pair.pid("decode")], pair.supervisor.control_dir
        pair.faults.hold(40)
        stream = pair.stream(range(30), 60)
        await stream.reach(10)
        pair.faults.let_go()
        await pair.supervisor.stop()
        assert await stream.finish() is EndReason.SHUTDOWN
        assert all(is_gone(pid) for pid in pids)
        assert not control_dir.exists()
        assert capfd.readouterr().err == ""
        assert await pair.stream(range(30), 60).finish() is EndReason.SHUTDOWN


async def test_draining_lets_open_requests_end_and_admits_no_other(tmp_path: Path) -> None:
    """What runs ends right, within the bound; what does not end in time hears of the shutdown."""
    async with running_pair(Scene(), tmp_path) as pair:
        pair.faults.hold(40)
        stream, late = pair.stream(range(20), 40), pair.stream(range(30), 20)
        await stream.reach(10)
        await late.reach(10)
        draining = asyncio.create_task(pair.supervisor.dispatcher.drain(60.0))
        await until("it drains", lambda: pair.supervisor.dispatcher.draining)
        assert await pair.stream(range(30), 60).finish() is EndReason.SHUTDOWN
        assert not draining.done()
        pair.faults.let_go()
        assert {await each.finish() for each in (stream, late)} == {EndReason.LENGTH}
        assert stream.right
        await asyncio.gather(draining)


async def test_what_does_not_end_while_draining_is_ended(tmp_path: Path) -> None:
    """The bound holds, whatever a request does."""
    async with running_pair(Scene(), tmp_path) as pair:
        pair.faults.hold(40)
        stream = pair.stream(range(30), 60)
        await stream.reach(10)
        await pair.supervisor.dispatcher.drain(0.2)
        assert await stream.finish() is EndReason.SHUTDOWN
        assert stream.right
        pair.faults.let_go()


async def test_a_broken_dispatcher_says_so_and_ends_what_it_feeds(tmp_path: Path) -> None:
    """An error in its tasks is not silence: open requests end, none is admitted, and whoever serves is told."""

    async def breaks() -> None:
        raise KeyError("gone")

    async with running_pair(Scene(), tmp_path) as pair:
        pair.faults.hold(40)
        stream = pair.stream(range(30), 60)
        await stream.reach(10)
        await pair.supervisor.dispatcher.watched(breaks())
        assert await stream.finish() is EndReason.SHUTDOWN
        assert pair.supervisor.failed.is_set()
        assert pair.supervisor.failure == "KeyError"
        assert await pair.stream(range(30), 60).finish() is EndReason.SHUTDOWN


async def test_a_killed_supervisor_leaves_no_worker(tmp_path: Path) -> None:
    """The kernel ends the workers with it, one that is stopped in mid-air too."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "tests.integration.runtime.lone_supervisor", str(tmp_path))
    supervisor = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    assert supervisor.stdout is not None
    try:
        prefill, decode, control_dir = (await asyncio.wait_for(supervisor.stdout.readline(), 30)).decode().split()
        os.kill(int(prefill), signal.SIGSTOP)
    finally:
        supervisor.kill()
        await supervisor.wait()
    shutil.rmtree(control_dir)
    await until("both workers are gone", lambda: is_gone(int(prefill)) and is_gone(int(decode)), 5.0)
