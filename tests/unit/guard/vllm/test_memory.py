"""The bytes behind block numbers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engines import HostTensor, device_tensor

from kvfence.core.errors import SettingsError
from kvfence.guard.vllm.memory import BlockMemory

BLOCKS = 4


def group(*names: str, block_size: int = 8, **more: Any) -> Any:
    """Give a KV cache group."""
    spec = SimpleNamespace(block_size=block_size, head_size=4, **more)
    return SimpleNamespace(layer_names=list(names), kv_cache_spec=spec)


Make = Callable[..., Any]


@pytest.fixture
def tensor(place: str) -> Make:
    """Give what a connector has for a cache."""
    return HostTensor if place == "host" else device_tensor


@pytest.fixture
def cache(tensor: Make) -> Make:
    """Makes caches of random items."""
    return lambda *shape: tensor(np.random.default_rng(1).integers(1, 1 << 16, shape).astype(np.uint16))


def test_every_byte_of_a_block_is_in_its_digest_and_no_other(cache: Make) -> None:
    """One item changed in any layer changes that block's digest and leaves the others'."""
    layers = {"a": cache(BLOCKS, 2, 8, 4), "b": cache(BLOCKS, 2, 8, 4)}
    memory = BlockMemory(layers, [group("a", "b")], BLOCKS)
    before = [memory.digest_of(0, block) for block in range(BLOCKS)]
    assert len(set(before)) == BLOCKS
    layers["b"].array[2, 1, 7, 3] += 1
    after = [memory.digest_of(0, block) for block in range(BLOCKS)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_a_block_is_of_its_group(cache: Make) -> None:
    """What another group's layers hold under the same number is not in it."""
    layers = {"a": cache(BLOCKS, 2, 8, 4), "b": cache(BLOCKS, 2, 8, 4)}
    memory = BlockMemory(layers, [group("a"), group("b")], BLOCKS)
    before = memory.digest_of(0, 1)
    layers["b"].array[1] = 0
    assert memory.digest_of(0, 1) == before


@pytest.mark.parametrize("ratio", [1, 2])
def test_a_block_is_made_zero_and_no_other(cache: Make, ratio: int) -> None:
    """Also where the kernels cut a block into several; wherever in it a token stands."""
    made = cache(BLOCKS * ratio, 2, 8 // ratio, 4)
    memory = BlockMemory({"a": made}, [group("a")], BLOCKS)
    memory.zero(0, 2)
    assert not made.array[2 * ratio : 3 * ratio].any()
    assert made.array[: 2 * ratio].all()
    assert made.array[3 * ratio :].all()


def test_a_group_whose_layers_differ_is_read_layer_by_layer(cache: Make) -> None:
    """vLLM wraps their descriptions in one that has none of their sizes."""
    inner = SimpleNamespace(block_size=8, head_size=4)
    spec = SimpleNamespace(block_size=8, kv_cache_specs={"a": inner})
    made = cache(BLOCKS, 2, 8, 4)
    memory = BlockMemory({"a": made}, [SimpleNamespace(layer_names=["a"], kv_cache_spec=spec)], BLOCKS)
    memory.zero(0, 1)
    assert not made.array[1].any()


def test_state_is_not_made_zero(cache: Make) -> None:
    """What holds no tokens is left as it is, and digested."""
    state = [cache(BLOCKS, 6), cache(BLOCKS, 4)]
    memory = BlockMemory({"a": state}, [group("a")], BLOCKS)
    before = memory.digest_of(0, 1)
    memory.zero(0, 1)
    assert memory.digest_of(0, 1) == before
    state[1].array[1, 2] += 1
    assert memory.digest_of(0, 1) != before


def test_a_view_with_gaps_is_read_as_a_view(tensor: Make) -> None:
    """Layers that share one allocation block by block digest to what they would alone."""
    packed = np.random.default_rng(2).integers(0, 1 << 16, (BLOCKS, 2, 2, 8, 4)).astype(np.uint16)
    apart = BlockMemory({"a": tensor(packed[:, 1])}, [group("a")], BLOCKS)
    alone = BlockMemory({"a": tensor(packed[:, 1].copy())}, [group("a")], BLOCKS)
    assert apart.digest_of(0, 3) == alone.digest_of(0, 3)


def test_another_shape_is_refused_by_it(cache: Make) -> None:
    """Nothing is guessed at."""
    with pytest.raises(SettingsError, match="5 rows for 4 blocks"):
        BlockMemory({"a": cache(BLOCKS + 1, 2, 8, 4)}, [group("a")], BLOCKS)


def test_another_device_is_refused_by_its_name() -> None:
    """There is no digest there."""
    made = HostTensor(np.ones((BLOCKS, 2, 8, 4), np.uint16))
    made.device = SimpleNamespace(type="xpu")
    with pytest.raises(SettingsError, match="xpu"):
        BlockMemory({"a": made}, [group("a")], BLOCKS)


def test_caches_on_two_devices_are_refused() -> None:
    """A block has one digest."""
    caches = {name: HostTensor(np.ones((BLOCKS, 2, 8, 4), np.uint16)) for name in "ab"}
    caches["b"].device = SimpleNamespace(type="cuda")
    with pytest.raises(SettingsError, match="cpu and cuda"):
        BlockMemory(caches, [group("a", "b")], BLOCKS)


def test_a_flat_cache_is_cut_into_its_blocks(tensor: Make) -> None:
    """Layers of several kinds over one allocation have no shape of their own."""
    flat = np.random.default_rng(3).integers(0, 1 << 16, BLOCKS * 24).astype(np.uint16)
    cut = BlockMemory({"a": tensor(flat)}, [group("a")], BLOCKS)
    whole = BlockMemory({"a": tensor(flat.reshape(BLOCKS, 24).copy())}, [group("a")], BLOCKS)
    assert [cut.digest_of(0, block) for block in range(BLOCKS)] == [whole.digest_of(0, n) for n in range(BLOCKS)]


def test_blocks_are_digested_together_as_they_are_alone(cache: Make) -> None:
    """In the order given, group by group."""
    caches = {"a": cache(BLOCKS, 2, 8, 4), "b": cache(BLOCKS, 3, 8, 4)}
    memory = BlockMemory(caches, [group("a"), group("b")], BLOCKS)
    alone = memory.digest_of(0, 3) + memory.digest_of(0, 1) + memory.digest_of(1, 2)
    assert memory.digests_of(((3, 1), (2,)), memory.mark()) == alone
