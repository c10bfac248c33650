"""The bytes behind vLLM's block numbers: a digest for each block, and blocks made zero before they are written.

Where in a block a token stands is the attention backend's own affair (vLLM's CPU kernels pack it by instruction set),
so that nothing here looks inside one. Blocks on a device are digested there (``tensor_digest.py``), as they lie in
memory; on a graphics processor that has not run. Another device is refused at the start, by its name.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.guard.digest import NAME, digest_on


class _Cache(Struct, frozen=True):
    """One of a layer's tensors, as vLLM has it. ``ratio``: so many of its rows are a block of vLLM's."""

    name: str
    tensor: Any
    ratio: int
    holds_tokens: bool


class _Group(Protocol):
    """One KV cache group: a block holds the bytes of its own group's layers. ``after``: what ``mark`` gave."""

    def digests_of(self, blocks: Sequence[int], after: Any) -> Iterable[bytes]:
        """Digest blocks as they are now, or as they are once a device has come so far."""

    def zero(self, block: int) -> None:
        """Make a block zero, in every layer that holds tokens."""

    def mark(self) -> Any:
        """Give how much a device has been asked for by now."""


class BlockMemory:
    """One rank's caches, by KV cache group. ``digest``: the name of what blocks are compared by."""

    def __init__(self, caches: dict[str, Any], groups: Sequence[Any], num_blocks: int) -> None:
        found = [
            [
                cache
                for name in group.layer_names
                if name in caches
                for cache in _caches(name, caches[name], group.kv_cache_spec, num_blocks)
            ]
            for group in groups
        ]
        if not found or not all(found):
            raise SettingsError(["a KV cache group has no cache on this rank: the guard does not know this model"])
        devices = {cache.tensor.device.type for group in found for cache in group}
        if len(devices) > 1:
            raise SettingsError([f"caches on {' and '.join(sorted(devices))} at once are not covered by the guard"])
        self.digest = digest_on(devices.pop())
        kind = _OnDevice if self.digest == NAME else _OnHost
        self._groups: list[_Group] = [kind(group, num_blocks) for group in found]

    def digest_of(self, group: int, block: int) -> bytes:
        """Digest one block as it is now."""
        (digest,) = self._groups[group].digests_of((block,), None)
        return digest

    def digests_of(self, blocks: Iterable[Sequence[int]], after: Any = None) -> bytes:
        """Digest blocks, given by group and in order, one behind the other; not before what ``mark`` gave."""
        return b"".join(
            digest for group, each in enumerate(blocks) for digest in self._groups[group].digests_of(each, after)
        )

    def zero(self, group: int, block: int) -> None:
        """Make a block zero, in every layer that holds tokens."""
        self._groups[group].zero(block)

    def mark(self) -> Any:
        """Give how much a device has been asked for by now: who reads beside the steps reads no sooner."""
        return self._groups[0].mark()


class _OnHost:
    """A group in host memory. Rows: [kernel blocks, ...] as vLLM's own view, items as unsigned integers."""

    def __init__(self, caches: Sequence[_Cache], num_blocks: int) -> None:
        self._caches = [(_array(cache, num_blocks), cache.ratio, cache.holds_tokens) for cache in caches]

    def digests_of(self, blocks: Sequence[int], _after: Any) -> Iterator[bytes]:
        """Digest blocks as they are now."""
        for block in blocks:
            digest = xxhash.xxh3_128()
            for rows, ratio, _ in self._caches:
                digest.update(np.ascontiguousarray(rows[block * ratio : (block + 1) * ratio]).data)
            yield digest.digest()

    def zero(self, block: int) -> None:
        """Make a block zero, in every layer that holds tokens."""
        for rows, ratio, holds_tokens in self._caches:
            if holds_tokens:
                rows[block * ratio : (block + 1) * ratio] = 0

    def mark(self) -> None:
        """Nothing is queued on a host."""


class _OnDevice:
    """A group on a device, its layers cut into what stands side by side there."""

    def __init__(self, caches: Sequence[_Cache], num_blocks: int) -> None:
        from kvfence.guard.tensor_digest import DevicePages, runs_of

        runs = [runs_of(_blocks_of(cache.tensor, num_blocks), num_blocks, cache.ratio) for cache in caches]
        self._pages = DevicePages([run for each in runs for run in each])
        self._zeroed = [run for each, cache in zip(runs, caches, strict=True) if cache.holds_tokens for run in each]

    def digests_of(self, blocks: Sequence[int], after: Any) -> Iterator[bytes]:
        """Digest blocks: their sums are computed on the device."""
        sums = self._pages.sums(np.array(blocks, dtype=np.int64), after).swapaxes(0, 1)
        return (xxhash.xxh3_128_digest(each.data) for each in np.ascontiguousarray(sums))

    def zero(self, block: int) -> None:
        """Queue it before the pass that will write there."""
        for run in self._zeroed:
            run[block].zero_()

    def mark(self) -> Any:
        """Give how much the device has been asked for by now."""
        return self._pages.mark()


def _caches(name: str, cache: Any, spec: Any, num_blocks: int) -> list[_Cache]:
    """Give the caches of one layer: attention has one, a state-space layer has several."""
    if isinstance(cache, list | tuple):
        return [_Cache(name, each, 1, holds_tokens=False) for each in cache]
    num_rows = num_blocks if len(cache.shape) == 1 else cache.shape[0]
    ratio, rest = divmod(num_rows, num_blocks)
    if rest or not ratio:
        raise SettingsError([f"the cache of {name} has {num_rows} rows for {num_blocks} blocks"])
    spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)  # of a group whose layers differ
    return [_Cache(name, cache, ratio, holds_tokens=hasattr(spec, "head_size"))]


def _blocks_of(cache: Any, num_blocks: int) -> Any:
    """Give a cache with its blocks in front; a flat one is cut into them."""
    return cache.reshape(num_blocks, -1) if len(cache.shape) == 1 else cache


def _array(cache: _Cache, num_blocks: int) -> npt.NDArray[Any]:
    """Give a cache as vLLM's view of it, without torch."""
    tensor = cache.tensor
    size = tensor.element_size()
    strides = tuple(each * size for each in tensor.stride())
    span = size + sum((length - 1) * stride for length, stride in zip(tensor.shape, strides, strict=True))
    memory = (ctypes.c_uint8 * span).from_address(tensor.data_ptr())
    array = np.ndarray(tuple(tensor.shape), np.dtype(f"u{size}"), buffer=memory, strides=strides)
    made: npt.NDArray[Any] = _blocks_of(array, num_blocks)
    return made
