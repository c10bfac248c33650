"""Pairs that cannot start: the message says why, and nothing is left behind."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvfence.core.errors import CapacityError, KvfenceError, ModelError, WorkerError
from kvfence.core.settings import Role
from kvfence.models.toy import write_toy_checkpoint
from kvfence.runtime.life import WORKER_MODULES
from tests.integration.runtime.arithmetic import PAGE_SIZE
from tests.integration.runtime.pairs import PROGRAMS, Scene, planned_pair, running_pair

Refuses = Callable[..., AbstractAsyncContextManager[pytest.ExceptionInfo[KvfenceError]]]


def with_program(role: Role, module: str) -> Scene:
    """A scene in which one role runs another program."""
    return Scene(modules={**PROGRAMS, role: module})


@asynccontextmanager
async def refused(scene: Scene, folder: Path, model: str = "") -> AsyncIterator[pytest.ExceptionInfo[KvfenceError]]:
    """Start a pair that must fail to, and see that nothing of it is left."""
    async with planned_pair(scene, folder, model) as pair:
        with pytest.raises(KvfenceError) as caught:
            await pair.supervisor.start()
        children = [process.child for process in pair.supervisor.live.values()]
        await pair.supervisor.stop()
    assert all(child is not None and child.returncode is not None for child in children)
    assert not pair.supervisor.control_dir.exists()
    yield caught


async def test_a_program_that_dies(tmp_path: Path) -> None:
    """Its role and exit status are told."""
    async with refused(with_program("decode", "tests.integration.runtime.exits_at_once"), tmp_path) as caught:
        assert isinstance(caught.value, WorkerError)
        assert (caught.value.role, caught.value.exit_status) == ("decode", 3)
        assert "died at start with status 3" in str(caught.value)


async def test_a_program_that_never_loads(tmp_path: Path) -> None:
    """The bound and its flag are told."""
    scene = replace(with_program("prefill", "tests.integration.runtime.never_loads"), ready_timeout_s=1.0)
    async with refused(scene, tmp_path) as caught:
        assert "did not load within 1.0 s; see --ready-timeout-s" in str(caught.value)


async def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """The worker's own words reach whoever started it."""
    scene = with_program("decode", WORKER_MODULES["decode"])
    async with refused(scene, tmp_path, str(tmp_path / "nothing")) as caught:
        assert isinstance(caught.value, ModelError)
        assert "config.json: missing" in str(caught.value)


async def test_a_corrupt_model_file(tmp_path: Path) -> None:
    """A truncated weight file is named."""
    model = write_toy_checkpoint(tmp_path / "toy")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    async with refused(with_program("decode", WORKER_MODULES["decode"]), tmp_path, str(model)) as caught:
        assert isinstance(caught.value, ModelError)
        assert str(model) in str(caught.value)


async def test_pools_that_cannot_hold_one_context(tmp_path: Path) -> None:
    """The sums of both roles and the flag that mends it are told."""
    scene = Scene(prefill_pages=32, decode_pages=32, check_capacity=True)
    async with refused(scene, tmp_path) as caught:
        assert isinstance(caught.value, CapacityError)
        text = str(caught.value)
        assert "prefill: 32 pages = 512 tokens, needs 32: enough" in text
        assert "decode: 32 pages = 512 tokens, needs 33" in text
        assert "--pool-tokens 528" in text
        assert "--context 496" in text


async def test_a_pool_that_memory_does_not_hold(tmp_path: Path) -> None:
    """Too large a pool is refused by its worker in bytes, before anything serves."""
    async with refused(Scene(decode_pages=1 << 30), tmp_path) as caught:
        assert isinstance(caught.value, CapacityError)
        assert "decode worker" in str(caught.value)
        assert "lower --pool-tokens" in str(caught.value)


async def test_context_auto_takes_what_both_pools_hold(tmp_path: Path) -> None:
    """Decode's pool, one page for the tail's copy aside, bounds the context that is served."""
    scene = Scene(prefill_pages=24, decode_pages=17, context=0, check_capacity=True)
    async with running_pair(scene, tmp_path) as pair:
        assert pair.supervisor.dispatcher.capacity.context_tokens == 16 * PAGE_SIZE
        await pair.works()
