"""A digest of a page that a graphics processor and a host compute alike, bit for bit; here on the host.

Take a page as 32-bit words ``w[0] .. w[n-1]``, little end first, and a word 1 behind them. The digest is two sums
modulo 2**64, ``sum(w[i] * m[i])`` with two rows of odd multipliers that hang on the position alone. Sums may be taken
in any order, so a device computes them in parallel and in pieces.

What it finds: a change within one word, always, since an odd multiplier can be undone. Any other change of a page
with a chance of at least ``1 - 2**-64``, were the multipliers drawn at random: where two pages differ by ``d[i]``, with
at most 31 trailing zero bits, at most one in 2**32 odd ``m[i]`` makes one sum zero, whatever the others are, and there
are two sums. The multipliers are fixed and known (splitmix64 of the position), so that two sides need no key: this
stops accidents, not attackers, who can solve two equations. Who says what the digest is, is proved by ``key.py``.

Where no device is involved, ``xxhash`` is some eight times as fast: pages in host memory are digested by it. Which of
the two pages have is said here, once for both guards. Read next: ``tensor_digest.py``.
"""

from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from kvfence.core.errors import LayoutMismatch, SettingsError

NAME = "odd_sums_128"
BY_DEVICE = {"cpu": "xxh3_128", "cuda": NAME}
"""The digest of pages by the kind of device that they are on, as torch names it, which calls ROCm's ``cuda`` too.

Its name is part of a layout's name, so that two sides which compute different ones refuse each other.
"""

WORD_BYTES = 4
STREAMS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Where each row of multipliers begins; added once for each position."""

MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""splitmix64's own multipliers."""

Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint64]

_TABLES = 8
_WORDS_AT_ONCE = 16_384


def digest_on(device: str) -> str:
    """Name the digest of pages on a device, given with or without its number.

    Raises:
        SettingsError: there is none.
    """
    kind = device.partition(":")[0]
    if kind not in BY_DEVICE:
        raise SettingsError([f"no digest of pages on {kind}: the guard runs on {' and '.join(BY_DEVICE)} alone"])
    return BY_DEVICE[kind]


def page_sums(pages: Bytes) -> Sums:
    """Digest each page. Shapes: pages [num_pages, page_bytes]; the result [num_pages, 2].

    Raises:
        LayoutMismatch: a page is no whole number of words.
    """
    weights = multipliers(num_words(pages.shape[1]))
    return weighted_sums(np.ascontiguousarray(pages).view("<u4"), weights)


def num_words(page_bytes: int) -> int:
    """Give how many words a page has.

    Raises:
        LayoutMismatch: it is no whole number.
    """
    if page_bytes % WORD_BYTES or page_bytes <= 0:
        raise LayoutMismatch(f"a page of {page_bytes} bytes is no whole number of words: {NAME} cannot digest it")
    return page_bytes // WORD_BYTES


def weighted_sums(words: npt.NDArray[np.uint32], weights: Sums) -> Sums:
    """Weigh and sum each row's words, and a word 1 behind them. Shapes: [pages, n] and [2, n + 1] give [pages, 2]."""
    sums = np.repeat(weights[:, -1][None], len(words), axis=0)
    columns = words.shape[1]
    rows = max(1, _WORDS_AT_ONCE // columns)
    for top, left in product(range(0, len(words), rows), range(0, columns, _WORDS_AT_ONCE)):
        across = slice(left, left + _WORDS_AT_ONCE)
        wide = words[top : top + rows, across].astype(np.uint64)
        for stream, weight in enumerate(weights[:, :columns]):
            sums[top : top + rows, stream] += wide @ weight[across]
    return sums


@lru_cache(maxsize=_TABLES)
def multipliers(num_words: int) -> Sums:
    """Give the multipliers of a page's words, and of the word behind them. Shapes: [2, num_words + 1]."""
    position = np.arange(1, num_words + 2, dtype=np.uint64)
    table = np.stack([_mixed(position * np.uint64(stream)) for stream in STREAMS])
    table.flags.writeable = False
    return table


def _mixed(state: Sums) -> Sums:
    """Finish splitmix64, and make it odd."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(MIX[0])
    state = (state ^ (state >> np.uint64(27))) * np.uint64(MIX[1])
    return state ^ (state >> np.uint64(31)) | np.uint64(1)
