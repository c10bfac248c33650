"""The digest of ``digest.py`` as one Triton kernel: a program weighs one block of words of some pages.

Multipliers are computed once a program and kept in registers while it goes over its pages; sums are added atomically,
and modulo 2**64 no order changes them. Imported only where tensors are on a device, so that nobody else needs Triton.
Run under Triton's interpreter by ``make test-digest``; on a graphics processor it has not run.
"""

import torch
import triton
import triton.language as tl

from kvfence.guard.digest import MIX, STREAMS, multipliers

WORDS_AT_ONCE = 1024
PAGES_AT_ONCE = 16

_FIRST: "tl.constexpr" = tl.constexpr(STREAMS[0])
_SECOND: "tl.constexpr" = tl.constexpr(STREAMS[1])
_MIX_A: "tl.constexpr" = tl.constexpr(MIX[0])
_MIX_B: "tl.constexpr" = tl.constexpr(MIX[1])
_WORDS: "tl.constexpr" = tl.constexpr(WORDS_AT_ONCE)
_PAGES: "tl.constexpr" = tl.constexpr(PAGES_AT_ONCE)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _multipliers(position, stream: tl.constexpr):  # type: ignore[no-untyped-def]
    state = (position + 1) * tl.full((1,), stream, tl.uint64)
    state = (state ^ (state >> 30)) * tl.full((1,), _MIX_A, tl.uint64)
    state = (state ^ (state >> 27)) * tl.full((1,), _MIX_B, tl.uint64)
    return state ^ (state >> 31) | 1


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _weigh(words, row_words, num_words, span, sums):  # type: ignore[no-untyped-def]
    pages, num_pages = span
    at = tl.program_id(0) * _WORDS + tl.arange(0, _WORDS)
    inside = at < num_words
    position = at.to(tl.uint64)
    first = _multipliers(position, _FIRST)
    second = _multipliers(position, _SECOND)
    begin = tl.program_id(1) * _PAGES
    for index in range(begin, tl.minimum(begin + _PAGES, num_pages)):
        page = tl.load(pages + index)
        word = tl.load(words + page * row_words + at, mask=inside, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
        tl.atomic_add(sums + 2 * index, tl.sum(word * first).to(tl.int64, bitcast=True))
        tl.atomic_add(sums + 2 * index + 1, tl.sum(word * second).to(tl.int64, bitcast=True))


def kernel_sums(words: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Digest pages where they are.

    Shapes:
        words: [pages of the pool, words of a page] int32, inner stride 1; pages: [n] int64 on the same device.
    Returns:
        [n, 2] int64, the bits of the sums; queued on the current stream, as a copy to the host waits for.
    """
    num_words = words.shape[1]
    behind = torch.from_numpy(multipliers(num_words)[:, -1].view("i8").copy()).to(words.device)
    sums = behind.repeat(len(pages), 1)
    if len(pages):
        grid = (triton.cdiv(num_words, WORDS_AT_ONCE), triton.cdiv(len(pages), PAGES_AT_ONCE))
        _weigh[grid](words, words.stride(0), num_words, (pages, len(pages)), sums)
    return sums
