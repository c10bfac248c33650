"""The digest of ``digest.py`` for pages on a device: computed there by the kernel, so that 16 bytes a page come back.

Both guards' memory uses it, inside the engine's process. What it cannot digest, and a device on which it does not give
what a host computes, is refused at the start, by name. Run with host memory, and the kernel under Triton's interpreter;
on a graphics processor nothing here has run.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from kvfence.core.errors import SettingsError
from kvfence.guard.digest import NAME, WORD_BYTES, Sums, page_sums

RUNS_MAX = 128
"""Into so many pieces the bytes of one page of a buffer may fall: some layouts put each head's apart."""

TRIED = ((2,), (1, 0), (0, 1, 2) * 5 + (0,))
"""Pages that are digested at the start: for one, for any number and for whole sixteens Triton makes other code."""

_ROWS = 3

Ints = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Queues the sums of some pages: from rows of words and indices, [n, 2] int64 on their device."""

Mark = torch.cuda.Event | None
"""How far the device's queue of work is to have come; None: nothing is queued on a host."""


class DevicePages:
    """Pages of one pool: so many buffers on one device.

    Shapes:
        buffers: each [pages of the pool, elements of a page] of any type, the elements of a page side by side.
    Raises:
        SettingsError: a page is no whole number of words, or the device's sums cannot be had or are not a host's.
    """

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        self._words = [_words_of(each) for each in buffers]
        self._device = self._words[0].device
        self._kernel = _kernel_on(self._device.type)
        for words, apart in sorted({(each.shape[1], max(each.stride(0), each.shape[1])) for each in self._words}):
            self._prove(words, apart)

    def _prove(self, num_words: int, apart: int) -> None:
        """Digest other words that lie as a buffer's do, here and on a host: no compiler has to be trusted."""
        numbers = torch.arange(1, _ROWS * apart + 1, dtype=torch.int64, device=self._device)
        sample = (numbers * 0x9E3779B1).to(torch.int32).view(_ROWS, apart)[:, :num_words]
        expected = page_sums(sample.cpu().contiguous().numpy().view(np.uint8))
        for pages in TRIED:
            found = self._sums([sample], np.array(pages))
            if (found[0] != expected[list(pages)]).any():
                raise SettingsError(
                    [f"{NAME} on {self._device} is not what a host computes: the guard cannot run there"]
                )

    def mark(self) -> Mark:
        """Give what is queued on the device by now, for ``sums`` in another thread."""
        if self._device.type == "cpu":
            return None
        event: Mark = torch.cuda.current_stream(self._device).record_event()
        return event

    def sums(self, pages: Ints, after: Mark = None) -> Sums:
        """Digest pages. Shapes: pages [n]; the result [buffers, n, 2].

        ``after``: read them once the device has come so far, beside what was queued since; without it they are read
        behind all that the caller has queued. Waits for the device.
        """
        with self._beside(after):
            return self._sums(self._words, pages)

    def _sums(self, buffers: Sequence[torch.Tensor], pages: Ints) -> Sums:
        with torch.cuda.device_of(buffers[0]):
            which = torch.from_numpy(np.asarray(pages, dtype=np.int64)).to(self._device)
            sums: Sums = torch.stack([self._kernel(each, which) for each in buffers]).cpu().numpy().view(np.uint64)
            return sums

    def blank(self, pages: Ints) -> None:
        """Queue noughts over pages."""
        which = torch.from_numpy(np.asarray(pages, dtype=np.int64)).to(self._device)
        for words in self._words:
            words.index_fill_(0, which, 0)

    @contextmanager
    def _beside(self, after: Mark) -> Iterator[None]:
        if after is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            yield

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)


def _words_of(buffer: torch.Tensor) -> torch.Tensor:
    """Give a buffer's pages as rows of words."""
    if buffer.dim() != 2 or buffer.stride(1) != 1:
        raise SettingsError([f"pages are rows with their bytes side by side, not strides {tuple(buffer.stride())}"])
    size = buffer.element_size()
    page_bytes, apart = buffer.shape[1] * size, buffer.stride(0) * size
    if not page_bytes or any(each % WORD_BYTES for each in (page_bytes, apart, buffer.data_ptr())):
        raise SettingsError(
            [f"pages of {page_bytes} bytes, {apart} apart, are no whole words: {NAME} cannot digest them"]
        )
    return buffer.view(torch.int32)


def _kernel_on(device: str) -> Kernel:
    """Give what digests pages on a kind of device.

    Raises:
        SettingsError: Triton is not here.
    """
    try:
        from kvfence.guard.digest_kernel import kernel_sums
    except ImportError as error:
        told = f"pages on {device} are digested by Triton, and there is no {error.name} here"
        raise SettingsError([f"{told}: install the one that this torch asks for"]) from error
    return kernel_sums


class _Span:
    """Memory of a device as torch takes it from others, without a copy."""

    def __init__(self, address: int, shape: tuple[int, int]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (address, False), "version": 3}


def rows_at(address: int, length: int, row_bytes: int, device: str) -> torch.Tensor:
    """Give memory as a tensor. Units: bytes. Shapes: [rows, row_bytes] uint8.

    Raises:
        SettingsError: the address is not on that device.
    """
    shape = (length // row_bytes, row_bytes)
    if torch.device(device).type == "cpu":
        raw = (ctypes.c_uint8 * (shape[0] * row_bytes)).from_address(address)
        return torch.frombuffer(raw, dtype=torch.uint8).view(shape)
    rows = torch.as_tensor(_Span(address, shape), device=device)
    if rows.data_ptr() != address:
        raise SettingsError([f"the pages that the engine hands off are not on {device}"])
    return rows


def runs_of(cache: torch.Tensor, num_pages: int, rows: int) -> list[torch.Tensor]:
    """Give the bytes of a cache's pages as they lie in memory: pieces of which each stands side by side.

    ``rows``: so many of the cache's are a page.
    Shapes:
        cache: [num_pages * rows, ...] of any strides; each piece [num_pages, elements].
    Raises:
        SettingsError: a page falls into more than ``RUNS_MAX`` pieces.
    """
    apart = cache.stride(0)
    places = [(apart, rows), *zip(cache.stride()[1:], cache.shape[1:], strict=True)]
    axes = sorted((stride, length) for stride, length in places if length > 1)
    length = 1
    while axes and axes[0][0] == length:
        length *= axes.pop(0)[1]
    starts = [0]
    for stride, number in axes:
        starts = [start + stride * at for start in starts for at in range(number)]
        if len(starts) > RUNS_MAX:
            raise SettingsError([f"a page falls into pieces: shape {tuple(cache.shape)}, strides {cache.stride()}"])
    first = int(cache.storage_offset())
    return [cache.as_strided((num_pages, length), (rows * apart, 1), first + start) for start in sorted(starts)]
