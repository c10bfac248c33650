"""Run an executor over a plain torch buffer of page records, and the reference that its tokens must equal."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvfence.core.layout import KVLayout
from kvfence.core.request import SamplingParams
from kvfence.models.executor import PassRow
from kvfence.models.transformer import TransformerExecutor

GREEDY = SamplingParams(temperature=0.0)


def strided_views(layout: KVLayout, num_pages: int) -> list[torch.Tensor]:
    """Allocate page records full of NaN bytes and give one view per segment."""
    buffer = torch.full((num_pages * layout.record_bytes,), 0xFF, dtype=torch.uint8)
    views = []
    for segment, offset in zip(layout.segments, layout.offsets, strict=True):
        typed = buffer.view(getattr(torch, segment.dtype))
        strides = [layout.record_bytes // typed.element_size()]
        shape = (layout.page_size, *segment.shape)
        strides += [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        views.append(typed.as_strided((num_pages, *shape), strides, offset // typed.element_size()))
    return views


class Sequences:
    """Continuous batching for tests: chunks of prompts and decode tokens mixed in every pass, pages shuffled."""

    def __init__(self, executor: TransformerExecutor, num_pages: int, seed: int = 0) -> None:
        self.executor = executor
        self.free = [int(page) for page in np.random.default_rng(seed).permutation(num_pages)]
        executor.bind(strided_views(executor.layout, num_pages))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_new: int,
        *,
        chunk: int = 1 << 30,
        concurrency: int = 1 << 30,
        sampling: Sequence[SamplingParams] = (),
    ) -> list[list[int]]:
        """Give ``num_new`` tokens for each prompt."""
        outs: list[list[int]] = [[] for _ in prompts]
        done = [0] * len(prompts)
        pages: list[list[int]] = [[] for _ in prompts]
        while any(len(out) < num_new for out in outs):
            open_ = [i for i, out in enumerate(outs) if len(out) < num_new][:concurrency]
            rows = []
            for i in open_:
                whole = [*prompts[i], *outs[i]]
                new = whole[done[i] : done[i] + chunk]
                stop = done[i] + len(new)
                while len(pages[i]) < self.executor.layout.num_pages(stop):
                    pages[i].append(self.free.pop())
                wanted = (sampling[i] if sampling else GREEDY) if stop == len(whole) else None
                rows.append(PassRow(new, done[i], list(pages[i]), wanted, len(outs[i])))
                done[i] = stop
            for i, row, token in zip(open_, rows, self.executor.run(rows), strict=True):
                assert (token is None) == (row.sampling is None)
                if token is not None:
                    outs[i].append(token)
                if len(outs[i]) == num_new:
                    self.free += reversed(pages[i])
        return outs


def reference(model: Any, prompts: Sequence[Sequence[int]], num_new: int) -> list[list[int]]:
    """Give the greedy tokens of transformers' own ``generate``, one prompt at a time."""
    outs = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_new,
                min_new_tokens=num_new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        outs.append(out[0, len(prompt) :].tolist())
    return outs


def random_prompts(lengths: Sequence[int], vocab: int, seed: int = 3) -> list[list[int]]:
    """Draw prompts of given lengths."""
    draw = np.random.default_rng(seed)
    return [[int(token) for token in draw.integers(3, vocab, length)] for length in lengths]
