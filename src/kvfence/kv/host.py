"""Tensors over the pool's bytes, for a model on the host. Not for: devices; nothing is copied here."""

import torch

from kvfence.core.layout import KVLayout, Segment
from kvfence.kv.storage import PoolBuffer

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "uint8": torch.uint8,
    "int8": torch.int8,
}


def host_views(pool: PoolBuffer, layout: KVLayout) -> list[torch.Tensor]:
    """View each segment of all pages as one strided tensor, without a copy.

    Shapes:
        result[i]: [num_pages, page_size, *layout.segments[i].shape]; a step of the first axis is one record.
    Holds:
        The pool's buffer: it must outlive the tensors.
    """
    flat = torch.from_numpy(pool.records.reshape(-1))
    return [
        _view(flat, segment, offset, layout, pool.num_pages)
        for segment, offset in zip(layout.segments, layout.offsets, strict=True)
    ]


def _view(flat: torch.Tensor, segment: Segment, offset: int, layout: KVLayout, num_pages: int) -> torch.Tensor:
    typed = flat.view(_DTYPES[segment.dtype])
    itemsize = typed.element_size()
    strides, step = [], 1
    for size in reversed((layout.page_size, *segment.shape)):
        strides.append(step)
        step *= size
    shape = (num_pages, layout.page_size, *segment.shape)
    return torch.as_strided(typed, shape, (layout.record_bytes // itemsize, *reversed(strides)), offset // itemsize)
