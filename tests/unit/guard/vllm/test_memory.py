"""The bytes behind block numbers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engines import HostTensor

from kvfence.core.errors import SettingsError
from kvfence.guard.vllm.memory import BlockMemory

BLOCKS = 4


def group(*names: str, block_size: int = 8, **more: Any) -> Any:
    """Give a KV cache group."""
    spec = SimpleNamespace(block_size=block_size, head_size=4, **more)
    return SimpleNamespace(layer_names=list(names), kv_cache_spec=spec)


def cache(*shape: int) -> HostTensor:
    """Give a cache of random items."""
    return HostTensor(np.random.default_rng(1).integers(1, 1 << 16, shape).astype(np.uint16))


def test_every_byte_of_a_block_is_in_its_digest_and_no_other() -> None:
    """One item changed in any layer changes that block's digest and leaves the others'."""
    layers = {"a": cache(BLOCKS, 2, 8, 4), "b": cache(BLOCKS, 2, 8, 4)}
    memory = BlockMemory(layers, [group("a", "b")], BLOCKS)
    before = [memory.digest_of(0, block) for block in range(BLOCKS)]
    assert len(set(before)) == BLOCKS
    layers["b"].array[2, 1, 7, 3] += 1
    after = [memory.digest_of(0, block) for block in range(BLOCKS)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_a_block_is_of_its_group(vllm: Any) -> None:
    """What another group's layers hold under the same number is not in it."""
    layers = {"a": cache(BLOCKS, 2, 8, 4), "b": cache(BLOCKS, 2, 8, 4)}
    memory = BlockMemory(layers, [group("a"), group("b")], BLOCKS)
    before = memory.digest_of(0, 1)
    layers["b"].array[1] = 0
    assert memory.digest_of(0, 1) == before


@pytest.mark.parametrize(("ratio", "valid"), [(1, 3), (2, 3), (2, 6), (1, 8)])
def test_zeros_stand_behind_the_valid_tokens(ratio: int, valid: int) -> None:
    """Also where the kernels cut a block into several."""
    made = cache(BLOCKS * ratio, 2, 8 // ratio, 4)
    memory = BlockMemory({"a": made}, [group("a")], BLOCKS)
    memory.zero_tail(0, 2, valid)
    rows = made.array[2 * ratio : 3 * ratio]
    tokens = np.concatenate(list(rows), axis=1)
    assert tokens[:, :valid].all()
    assert not tokens[:, valid:].any()
    assert made.array[: 2 * ratio].all()
    assert made.array[3 * ratio :].all()


def test_state_has_no_tail() -> None:
    """What holds no tokens is left as it is, and digested."""
    state = [cache(BLOCKS, 6), cache(BLOCKS, 3)]
    memory = BlockMemory({"a": state}, [group("a")], BLOCKS)
    before = memory.digest_of(0, 1)
    memory.zero_tail(0, 1, 1)
    assert memory.digest_of(0, 1) == before
    state[1].array[1, 2] += 1
    assert memory.digest_of(0, 1) != before


def test_a_view_with_gaps_is_read_as_a_view() -> None:
    """Layers that share one allocation block by block digest to what they would alone."""
    packed = np.random.default_rng(2).integers(0, 1 << 16, (BLOCKS, 2, 2, 8, 4)).astype(np.uint16)
    apart = BlockMemory({"a": HostTensor(packed[:, 1])}, [group("a")], BLOCKS)
    alone = BlockMemory({"a": HostTensor(packed[:, 1].copy())}, [group("a")], BLOCKS)
    assert apart.digest_of(0, 3) == alone.digest_of(0, 3)


@pytest.mark.parametrize(
    ("made", "says"),
    [(cache(BLOCKS, 2, 4, 8), "no axis of 8"), (cache(BLOCKS + 1, 2, 8, 4), "rows for 4 blocks")],
)
def test_another_layout_is_refused_by_its_shape(made: HostTensor, says: str) -> None:
    """Nothing is guessed at."""
    with pytest.raises(SettingsError, match=says):
        BlockMemory({"a": made}, [group("a")], BLOCKS)


def test_another_device_is_refused_by_its_name() -> None:
    """There is no digest there."""
    made = cache(BLOCKS, 2, 8, 4)
    made.device = SimpleNamespace(type="cuda")
    with pytest.raises(SettingsError, match="cuda"):
        BlockMemory({"a": made}, [group("a")], BLOCKS)
