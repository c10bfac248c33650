"""No memory for a pool: at start it is said and nothing is left; at a replacement the others serve on.

The kernel refuses the space as it does where memory is full: by an error of the call that takes it, before a page is
used. It is made to refuse by a limit on file sizes, which holds for memory files and is inherited.
"""

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfence.core.errors import CapacityError
from kvfence.runtime import supervisor
from tests.faults.harms import Kill
from tests.faults.site import ANSWER_S, Crowd, running_site
from tests.integration.runtime.pairs import Scene, planned_pair, until

pytestmark = pytest.mark.faults


@contextlib.contextmanager
def full_memory() -> Iterator[None]:
    """Let no process that starts now take more than 1 MiB of shared memory; a pool here is 3 MiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_at_start(tmp_path: Path) -> None:
    """The server does not start, says how much is missing and what to do, and leaves nothing."""
    async with planned_pair(Scene(num_prefill=2, num_decode=2, trace=False), tmp_path) as pair:
        with full_memory(), pytest.raises(CapacityError, match=r"the pool needs .* lower --pool-tokens"):
            await pair.supervisor.start()
        await pair.supervisor.stop()
        children = [life.child for life in pair.supervisor.live.values()]
        assert all(child is not None and child.returncode is not None for child in children)
        assert not pair.supervisor.control_dir.exists()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_at_a_replacement(tmp_path: Path, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other pair serves on, whoever was on the dead worker hears so in time; with memory it comes back."""
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", (0.0, 0.5, 1.0))
    scene = Scene(num_prefill=2, num_decode=2, trace=False)
    async with running_site(scene, tmp_path) as site:
        pair = site.pair
        with full_memory():
            async with Crowd(site.client).around() as crowd:
                Kill().begin(pair.pid(role, 0))  # type: ignore[arg-type]
                await until("it was tried three times", lambda: pair.restarts(role, 0) >= 3, 30.0)  # type: ignore[arg-type]
            lost = [seen for seen in crowd.seen if not seen.whole]
            assert all(seen.refused or seen.broken_off for seen in lost), lost
            assert len(lost) <= Crowd.LANES
            assert sum(seen.whole for seen in crowd.seen) > 3
            assert "the pool needs" in pair.log()
        await pair.ready(3, role, 0)  # type: ignore[arg-type]
        await pair.all_free()
        assert (await site.client.ask("again", 5)).whole


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_at_a_replacement_of_the_only_worker(tmp_path: Path, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left waiting: 503 with the time to ask again, within the bound; with memory it serves again."""
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", (0.0, 0.5, 1.0))
    async with running_site(Scene(trace=False), tmp_path) as site:
        pair = site.pair
        with full_memory():
            Kill().begin(pair.pid(role))  # type: ignore[arg-type]
            await until("a start has failed", lambda: "worker_restart_failed" in pair.log())
            asked_s = time.monotonic()
            seen = await site.client.ask("anybody there", 5)
            assert seen.refused
            assert seen.ended_s - asked_s < ANSWER_S
        await pair.ready(2, role)  # type: ignore[arg-type]
        await pair.all_free()
        assert (await site.client.ask("again", 5)).whole
