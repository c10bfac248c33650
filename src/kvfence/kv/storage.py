"""The pool as bytes: a memory file that processes share by descriptor, and its record, head and tail views.

A memory file has no name, so nothing is left behind when a worker is killed, and it does not live in
``/dev/shm``, which containers limit to 64 MB. Space is taken at start: a pool that does not fit is an error
then and not a SIGBUS in the middle of a write.

Not for: what the bytes mean (``seal.py``) or tensors (``host.py``).
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from kvfence.core.errors import CapacityError
from kvfence.core.invariant import require
from kvfence.core.layout import KVLayout
from kvfence.core.tags import HEAD_BYTES, TAIL_BYTES

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Pages = Sequence[int] | npt.NDArray[np.intp]

HEAD_WORDS = HEAD_BYTES // 8
TAIL_DTYPE = np.dtype(
    {
        "names": ["head", "num_tokens", "digest"],
        "formats": [("<u8", (HEAD_WORDS,)), "<u8", "V16"],
        "offsets": [0, 32, 40],
        "itemsize": TAIL_BYTES,
    }
)
"""A packed stamp as ``core/tags.py`` lays it out."""

_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
_CGROUP = Path("/sys/fs/cgroup")


class MemoryFile:
    """One anonymous file mapped into this process; others map it by ``fd``.

    Owner:
        Whoever opened it closes it, after every view of ``buffer`` is gone.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.buffer = mmap.mmap(fd, nbytes)
        # Huge pages make reading scattered heads cheaper by a third; kernels use them where shmem_enabled allows.
        with contextlib.suppress(OSError):
            self.buffer.madvise(_MADV_HUGEPAGE)

    def close(self) -> None:
        """Close descriptor and mapping; a mapping with views left goes with its last view."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self.buffer.close()


def open_shared(nbytes: int, directory: str | None = None) -> MemoryFile:
    """Make a memory file with all its space taken.

    Units:
        directory: where to place the (unlinked) file instead of anonymous memory.
    Raises:
        CapacityError: less than ``nbytes`` is free; says how much and what to do.
    """
    if directory is None:
        available = available_bytes()
        if nbytes > available:
            raise CapacityError(_does_not_fit(nbytes, available, "free memory"))
    fd = _anonymous_fd(directory)
    try:
        os.ftruncate(fd, nbytes)
        if directory is not None:
            os.posix_fallocate(fd, 0, nbytes)
            return MemoryFile(fd, nbytes)
        memory = MemoryFile(fd, nbytes)
        with contextlib.suppress(OSError):  # through the mapping first, where huge pages can be used; Linux >= 5.14
            memory.buffer.madvise(_MADV_POPULATE_WRITE)
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        where = "free memory" if directory is None else f"free space in {directory}"
        raise CapacityError(_does_not_fit(nbytes, None, where)) from error
    return memory


def map_shared(fd: int, nbytes: int) -> MemoryFile:
    """Map a memory file that another process opened; ``fd`` came by inheritance or over a socket.

    Raises:
        CapacityError: the file is smaller than said: reading past its end would be a SIGBUS.
    """
    size = os.fstat(fd).st_size
    if size < nbytes:
        raise CapacityError(f"the shared pool holds {size} bytes, expected {nbytes}: both workers need one layout")
    return MemoryFile(fd, nbytes)


def available_bytes() -> int:
    """Give the memory a new pool may take: what the kernel says, or the container's limit if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return available
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit of this kind here
        return available
    cache = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
    return min(available, max(0, int(limit) - used + cache))


def _anonymous_fd(directory: str | None) -> int:
    if directory is None and hasattr(os, "memfd_create"):
        return os.memfd_create("kvfence-pool")
    fd, path = tempfile.mkstemp(prefix="kvfence-pool-", dir=directory)
    os.unlink(path)
    return fd


def _does_not_fit(nbytes: int, available: int | None, where: str) -> str:
    have = "" if available is None else f", {available} bytes ({available / 2**20:.0f} MiB) are left"
    return (
        f"the pool needs {nbytes} bytes ({nbytes / 2**20:.0f} MiB) of {where}{have}: "
        "lower --pool-tokens or --context, or free memory"
    )


class PoolBuffer:
    """The pool's bytes over any writable buffer, with views of its records, heads and tails.

    Shapes:
        records: [num_pages, record_bytes] bytes.
        heads: [num_pages, 4] little-endian words, strided over the records.
        tails: [num_pages] of ``TAIL_DTYPE``, strided over the records.
        units: [num_pages * record_bytes / 32] of 32 opaque bytes; a page's head is unit ``page * units_per_page``.
    Holds:
        A view of the buffer; the buffer must outlive it.
    """

    def __init__(self, buffer: bytearray | memoryview | mmap.mmap, layout: KVLayout, num_pages: int) -> None:
        require(num_pages >= 1, "a pool has at least one page")
        nbytes = pool_bytes(layout, num_pages)
        flat: Bytes = np.frombuffer(buffer, dtype=np.uint8, count=nbytes)
        require(flat.flags.writeable, "a pool's buffer is writable")
        stride = (layout.record_bytes,)
        self.layout = layout
        self.num_pages = num_pages
        self.records: Bytes = flat.reshape(num_pages, layout.record_bytes)
        self.heads: Words = np.ndarray((num_pages, HEAD_WORDS), "<u8", flat.data, 0, (*stride, 8))
        self.tails: npt.NDArray[np.void] = np.ndarray((num_pages,), TAIL_DTYPE, flat.data, layout.tail_offset, stride)
        self.units: npt.NDArray[np.void] = flat.view(f"V{HEAD_BYTES}")
        self.units_per_page = layout.record_bytes // HEAD_BYTES

    def body(self, page: int) -> Bytes:
        """View the bytes of a page that its digest covers."""
        view: Bytes = self.records[page, self.layout.body]
        return view


def pool_bytes(layout: KVLayout, num_pages: int) -> int:
    """Give the size of a pool's buffer."""
    return layout.record_bytes * num_pages


def zero_pages(pool: PoolBuffer, pages: Pages) -> None:
    """Zero whole records, heads and tails included: the second line of ``--zero-on-release``.

    Owner:
        The caller: every write to the pages has ended.
    """
    pool.records[np.asarray(pages, dtype=np.intp)] = 0
