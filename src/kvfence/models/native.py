"""The kernels of ``kernels.c``: built once with the machine's own C compiler into the cache folder, and called here.

Without a compiler ``load_kernels`` gives None and torch does the same work in its own, slower way. What is built is
for this processor, so its name holds what the processor, the compiler and the source are. The folder must be this
user's alone: what lies there is run.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvfence.core.invariant import require
from kvfence.models.bundled import cache_root

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fopenmp")
COMPILERS = ("cc", "gcc", "clang")
BUILD_TIMEOUT_S = 120

PANEL, LANES, HEADS_MAX, DIM_MAX = 16, 8, 128, 512
"""As in ``kernels.c``."""

IN_MAX = 32_768
"""A widened panel of this many inputs takes 2 MB of stack."""

DTYPES = (torch.float32, torch.bfloat16)
_MADV_HUGEPAGE = 14


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "packed", "bias", "out", "wide")),
        *((name, c_int64) for name in ("rows", "inputs", "outs")),
        *((name, c_int32) for name in ("narrow", "threads")),
    )


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("query", "key", "value", "table", "bounds", "sinks", "out")),
        *((name, c_int64) for name in ("query_row", "query_head", "key_page", "value_page")),
        *((name, c_int64) for name in ("rows", "width", "page_size", "heads", "kv_heads", "dim", "value_dim")),
        *((name, c_float) for name in ("scale", "softcap")),
        *((name, c_int32) for name in ("narrow", "threads")),
    )


class Reads(NamedTuple):
    """Which slots of which pages the rows of a pass attend to.

    Shapes:
        table: [rows, width] page indices; bounds: [rows, 2], first and last + 1 slot counted from the row's first page.
    """

    table: Tensor
    bounds: Tensor


class Kernels:
    """The built library. Every tensor is on the CPU, float32 or bfloat16."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._product, self._attention = library.kvfence_product, library.kvfence_attention
        self._product.restype = self._attention.restype = None

    def product(self, x: Tensor, packed: Tensor, outs: int, bias: Tensor | None) -> Tensor:
        """Give x @ weight.T + bias. Shapes: x [..., in], packed as ``pack`` gives it -> [..., outs]."""
        require(x.dtype is packed.dtype and x.shape[-1] == packed.shape[1], "x is as wide as the weight")
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = x.new_empty(*x.shape[:-1], outs)
        narrow = x.dtype is torch.bfloat16
        wide = torch.empty(rows.shape, dtype=torch.float32) if narrow else rows
        pointers = (rows.data_ptr(), packed.data_ptr(), _pointer(bias), out.data_ptr(), wide.data_ptr())
        self._product(ctypes.byref(_Product(*pointers, *rows.shape, outs, narrow, torch.get_num_threads())))
        return out

    def attends(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Tell whether ``attend`` takes these. Shapes: [heads, rows, dim], [pages, size, kv heads, dim] twice."""
        dims = (query.shape[2], value.shape[3])
        return (
            query.dtype in DTYPES
            and query.dtype is key.dtype is value.dtype
            and query.stride(2) == 1
            and query.shape[0] <= HEADS_MAX
            and all(dim % LANES == 0 and dim <= DIM_MAX for dim in dims)
            and all(view[0].is_contiguous() for view in (key, value))
        )

    def attend(
        self, query: Tensor, views: tuple[Tensor, Tensor], reads: Reads, scale: float, out: Tensor, **more: Any
    ) -> None:
        """Attend one token of each row to its slots, read where they are.

        Shapes:
            query: [heads, rows, dim]; views: pool views of key and value; out: [rows, heads, value dim].
            more: ``softcap`` (0: none) and ``sinks`` ([heads] or None).
        """
        key, value = views
        require(out.is_contiguous() and out.shape[:2] == (query.shape[1], query.shape[0]), "a place for every row")
        sinks: Tensor | None = more.get("sinks")
        wide_sinks = None if sinks is None else sinks.detach().float().contiguous()
        pointers = (query, key, value, reads.table, reads.bounds, wide_sinks, out)
        strides = (query.stride(1), query.stride(0), key.stride(0), value.stride(0))
        shape = (*reads.table.shape, key.shape[1], query.shape[0], key.shape[2], query.shape[2], value.shape[3])
        kind = (query.dtype is torch.bfloat16, torch.get_num_threads())
        call = _Attention(*map(_pointer, pointers), *strides, *shape, scale, more.get("softcap") or 0.0, *kind)
        self._attention(ctypes.byref(call))


def pack(weight: Tensor) -> Tensor:
    """Copy a weight into panels, in huge pages where there are any.

    Shapes:
        weight: [outs, in] -> [panels, in, PANEL], the last panel filled up with zeros.
    """
    outs, inputs = weight.shape
    panels = -(-outs // PANEL)
    memory = mmap.mmap(-1, panels * inputs * PANEL * weight.element_size())
    if hasattr(memory, "madvise"):
        try:
            memory.madvise(_MADV_HUGEPAGE)
        except OSError:
            pass
    packed = torch.frombuffer(memory, dtype=weight.dtype).view(panels, inputs, PANEL)
    full = outs // PANEL
    packed[:full].copy_(weight[: full * PANEL].detach().view(full, PANEL, inputs).transpose(1, 2))
    if full < panels:
        packed[full, :, : outs - full * PANEL].copy_(weight[full * PANEL :].detach().t())
    return packed


def load_kernels(root: Path | None = None) -> Kernels | None:
    """Give the kernels, building them where they are not yet; None where that cannot be done."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    try:
        return Kernels(ctypes.CDLL(str(_built(compiler, (root or cache_root()) / "kernels"))))
    except (OSError, subprocess.SubprocessError):
        return None


def _built(compiler: str, folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = folder.stat()
    if held.st_uid != os.getuid() or held.st_mode & 0o022:
        raise PermissionError(f"{folder} must be this user's alone")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=BUILD_TIMEOUT_S).stdout
    made_of = (SOURCE.read_bytes(), version, " ".join(FLAGS).encode(), _processor())
    path = folder / f"{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:32]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / path.name
            command = [compiler, *FLAGS, str(SOURCE), "-o", str(made), "-lm"]
            subprocess.run(command, capture_output=True, check=True, timeout=BUILD_TIMEOUT_S)
            made.rename(path)
    return path


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    wanted = (b"model name", b"flags", b"Features", b"CPU part")
    return b"|".join(sorted({line for line in lines if line.startswith(wanted)}))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
