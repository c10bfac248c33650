"""The bytes behind SGLang's page indices: every buffer that a hand-off moves, and one digest over a request's pages.

What travels beside the pages, the first token and the sampler's state, is one *row* of buffers of its own in host
memory, and is digested with them. The engine names its buffers by address. Pages on a device are digested there
(``tensor_digest.py``; on a graphics processor that has not run). A buffer kind that is not covered is refused at the
start.
"""

import ctypes
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from kvfence.core.errors import SettingsError
from kvfence.guard.digest import NAME, digest_on

Pages = npt.NDArray[np.int32]
Rows = npt.NDArray[np.uint8]

MEMORY_POOL, ON_DEVICE = "SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "INTRA_NODE_NVLINK"
"""With this setting SGLang puts what travels beside the pages on the device, too."""


class Digest:
    """A digest over pages as they are sent, chunk by chunk; equal for the same pages in other chunks."""

    def __init__(self, memory: "PageMemory") -> None:
        self._memory = memory
        self._parts = [xxhash.xxh3_128() for _ in range(memory.num_buffers)]
        self.num_pages = 0

    def add(self, pages: Pages) -> None:
        """Read more pages, in the request's order."""
        for part, read in zip(self._parts, self._memory.read(pages), strict=True):
            part.update(read)
        self.num_pages += len(pages)

    def hex(self, row: int) -> str:
        """Give the digest of all pages so far, and of what travels beside them in this row."""
        whole = xxhash.xxh3_128()
        for part in self._parts:
            whole.update(part.digest())
        for beside in self._memory.beside:
            whole.update(beside[row].data)
        return whole.hexdigest()


class PageMemory:
    """One role's buffers: one per layer and per key or value, drafts included.

    ``device``: where they are, as torch names its kind.
    Shapes:
        beside: one per thing that travels with the first token: [rows, bytes of one].
    Raises:
        SettingsError: a kind of buffer or a device that is not covered.
    """

    def __init__(self, kv_args: Any, device: str = "cpu") -> None:
        digest = digest_on(device)
        _require_covered(kv_args, device)
        spans = list(zip(kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens, strict=True))
        beside = zip(kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens, strict=True)
        self.beside = [_rows(*each) for each in beside]
        self._buffers: list[Rows] = []
        self._on_device: Any = None
        if digest == NAME:
            from kvfence.guard.tensor_digest import DevicePages, rows_at

            place = device if device == "cpu" else f"{device}:{kv_args.gpu_id}"
            self._on_device = DevicePages([rows_at(*each, place) for each in spans])
        else:
            self._buffers = [_rows(*each) for each in spans]
        items = sorted(set(kv_args.kv_item_lens))
        self.num_buffers, self.num_pages = len(spans), spans[0][1] // spans[0][2]
        self.layout = (
            f"{self.num_buffers} buffers of {'+'.join(map(str, items))} bytes a page of {kv_args.page_size}, "
            f"{kv_args.kv_cache_dtype_str}, {sum(kv_args.aux_item_lens)} bytes beside, {digest}"
        )
        self.page_size = int(kv_args.page_size)

    def read(self, pages: Pages) -> Iterable[memoryview]:
        """Give what stands for pages in a digest, buffer by buffer: their bytes; on a device the sums of each."""
        if self._on_device is not None:
            return [each.data for each in self._on_device.sums(pages)]
        return (np.ascontiguousarray(buffer[pages]).data for buffer in self._buffers)

    def blank(self, pages: Pages, row: int | None) -> None:
        """Write noughts over pages, and over the row beside them."""
        if self._on_device is not None:
            self._on_device.blank(pages)
        for buffer in self._buffers:
            buffer[pages] = 0
        for beside in self.beside if row is not None else ():
            beside[row] = 0

    def digest_of(self, pages: Pages, row: int) -> str:
        """Digest pages, and the row beside them, as they are now."""
        digest = Digest(self)
        digest.add(pages)
        return digest.hex(row)


def _require_covered(kv_args: Any, device: str) -> None:
    problems = [str(kind) for kind in getattr(kv_args, "state_types", None) or ()]
    if getattr(kv_args, "host_kv_data_ptrs", None):
        problems.append("host copies")
    if problems:
        raise SettingsError([f"pages of the kinds {', '.join(problems)} are not covered by the guard"])
    if device != "cpu" and os.environ.get(MEMORY_POOL) == ON_DEVICE:
        raise SettingsError(
            [f"{MEMORY_POOL}={ON_DEVICE} is not covered by the guard: the first token is on the device"]
        )


def _rows(address: int, length: int, item: int) -> Rows:
    raw = memoryview((ctypes.c_uint8 * length).from_address(address))
    rows: Rows = np.frombuffer(raw, dtype=np.uint8)[: length // item * item].reshape(-1, item)
    return rows
