"""The bytes behind vLLM's block numbers: a digest for each block, and blocks made zero before they are written.

Where in a block a token stands is the attention backend's own affair (vLLM's CPU kernels pack it by instruction set),
so that nothing here looks inside one. Host memory only; another is refused at the start, by its name.
"""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct

from kvfence.core.errors import SettingsError

Rows = npt.NDArray[np.uint8]


class Layer(Struct, frozen=True):
    """One layer's cache.

    Shapes:
        rows: [kernel blocks, ...] as vLLM's own view, items as unsigned integers; a block of vLLM's is ``ratio`` rows.
    """

    rows: npt.NDArray[Any]
    ratio: int
    holds_tokens: bool


class BlockMemory:
    """One rank's caches, by KV cache group: a block holds the bytes of its own group's layers."""

    def __init__(self, caches: dict[str, Any], groups: Sequence[Any], num_blocks: int) -> None:
        self._groups = [
            [
                layer
                for name in group.layer_names
                if name in caches
                for layer in _layers(name, caches[name], group.kv_cache_spec, num_blocks)
            ]
            for group in groups
        ]
        if not all(self._groups):
            raise SettingsError(["a KV cache group has no cache on this rank: the guard does not know this model"])

    def digest_of(self, group: int, block: int) -> bytes:
        """Digest one block as it is now."""
        digest = xxhash.xxh3_128()
        for layer in self._groups[group]:
            digest.update(np.ascontiguousarray(_rows_of(layer, block)).data)
        return digest.digest()

    def digests_of(self, blocks: Iterable[Sequence[int]]) -> bytes:
        """Digest blocks, given by group and in order, one behind the other."""
        return b"".join(self.digest_of(group, block) for group, each in enumerate(blocks) for block in each)

    def zero(self, group: int, block: int) -> None:
        """Make a block zero, in every layer that holds tokens."""
        for layer in self._groups[group]:
            if layer.holds_tokens:
                _rows_of(layer, block)[...] = 0


def _rows_of(layer: Layer, block: int) -> npt.NDArray[Any]:
    return layer.rows[block * layer.ratio : (block + 1) * layer.ratio]


def _layers(name: str, cache: Any, spec: Any, num_blocks: int) -> list[Layer]:
    """Give the caches of one layer: attention has one, a state-space layer has several."""
    if isinstance(cache, list | tuple):
        return [Layer(_array(name, each, num_blocks), 1, holds_tokens=False) for each in cache]
    rows = _array(name, cache, num_blocks)
    ratio, rest = divmod(rows.shape[0], num_blocks)
    if rest or not ratio:
        raise SettingsError([f"the cache of {name} has {rows.shape[0]} rows for {num_blocks} blocks"])
    spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)  # of a group whose layers differ
    return [Layer(rows, ratio, holds_tokens=hasattr(spec, "head_size"))]


def _array(name: str, cache: Any, num_blocks: int) -> npt.NDArray[Any]:
    """Give a cache as vLLM's view of it, without torch; a flat one is cut into its blocks."""
    if cache.device.type != "cpu":
        raise SettingsError([f"no digest of blocks on {cache.device.type} yet: the guard runs on cpu alone ({name})"])
    size = cache.element_size()
    strides = tuple(each * size for each in cache.stride())
    span = size + sum((length - 1) * stride for length, stride in zip(cache.shape, strides, strict=True))
    memory = (ctypes.c_uint8 * span).from_address(cache.data_ptr())
    array = np.ndarray(tuple(cache.shape), np.dtype(f"u{size}"), buffer=memory, strides=strides)
    return array.reshape(num_blocks, -1) if array.ndim == 1 else array
