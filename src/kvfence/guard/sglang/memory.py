"""The bytes behind SGLang's page indices: every buffer that a hand-off moves, and one digest over a request's pages.

What travels beside the pages, the first token and the sampler's state, is one *row* of buffers of its own, and is
digested with them. Host memory only: the engine names its buffers by address. A buffer kind that is not covered is
refused at the start.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from kvfence.core.errors import SettingsError

Pages = npt.NDArray[np.int32]


class Digest:
    """A digest over pages as they are sent, chunk by chunk; equal for the same pages in other chunks."""

    def __init__(self, memory: "PageMemory") -> None:
        self._memory = memory
        self._parts = [xxhash.xxh3_128() for _ in memory.buffers]
        self.num_pages = 0

    def add(self, pages: Pages) -> None:
        """Read more pages, in the request's order."""
        for part, buffer in zip(self._parts, self._memory.buffers, strict=True):
            part.update(np.ascontiguousarray(buffer[pages]).data)
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
    """One role's buffers.

    Shapes:
        buffers: one per layer and per key or value, drafts included: [pages, bytes of one page].
        beside: one per thing that travels with the first token: [rows, bytes of one].
    """

    def __init__(self, kv_args: Any) -> None:
        states = [str(kind) for kind in getattr(kv_args, "state_types", None) or ()]
        if states:
            raise SettingsError([f"pages of the kinds {', '.join(states)} are not covered by the guard"])
        self.buffers = _buffers(kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens)
        self.beside = _buffers(kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens)
        items = sorted(set(kv_args.kv_item_lens))
        self.layout = (
            f"{len(self.buffers)} buffers of {'+'.join(map(str, items))} bytes a page of {kv_args.page_size}, "
            f"{kv_args.kv_cache_dtype_str}, {sum(kv_args.aux_item_lens)} bytes beside, xxh3_128"
        )
        self.page_size = int(kv_args.page_size)
        self.num_pages = len(self.buffers[0])

    def blank(self, pages: Pages, row: int | None) -> None:
        """Write noughts over pages, and over the row beside them."""
        for buffer in self.buffers:
            buffer[pages] = 0
        for beside in self.beside if row is not None else ():
            beside[row] = 0

    def digest_of(self, pages: Pages, row: int) -> str:
        """Digest pages, and the row beside them, as they are now."""
        digest = Digest(self)
        digest.add(pages)
        return digest.hex(row)


def _buffers(addresses: list[int], lengths: list[int], items: list[int]) -> list[npt.NDArray[np.uint8]]:
    return [_rows(*each) for each in zip(addresses, lengths, items, strict=True)]


def _rows(address: int, length: int, item: int) -> npt.NDArray[np.uint8]:
    raw = memoryview((ctypes.c_uint8 * length).from_address(address))
    rows: npt.NDArray[np.uint8] = np.frombuffer(raw, dtype=np.uint8)[: length // item * item].reshape(-1, item)
    return rows
