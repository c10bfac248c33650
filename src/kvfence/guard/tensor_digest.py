"""The digest of ``digest.py`` for tensors, wherever they are: on the host by numpy, elsewhere by the kernel.

Not for: light installs; an engine's adapter imports it once it knows that the engine has torch.
"""

import numpy as np
import torch

from kvfence.core.errors import LayoutMismatch
from kvfence.guard.digest import WORD_BYTES, Sums, num_words, page_sums


def tensor_sums(buffer: torch.Tensor, pages: torch.Tensor) -> Sums:
    """Digest some pages of a pool's buffer, as they are once the device's current stream has come so far.

    Shapes:
        buffer: [pages of the pool, elements of a page] of any type, the elements of a page side by side;
        pages: [n], indices; the result [n, 2].
    Raises:
        LayoutMismatch: a page is no whole number of words, or its elements are not side by side.
    """
    if buffer.dim() != 2 or buffer.stride(1) != 1:
        raise LayoutMismatch(f"pages are rows with their bytes side by side, not strides {tuple(buffer.stride())}")
    num_words(buffer.shape[1] * buffer.element_size())
    if buffer.device.type == "cpu":
        return page_sums(buffer.view(torch.uint8).numpy()[pages.numpy()])
    if buffer.stride(0) * buffer.element_size() % WORD_BYTES or buffer.data_ptr() % WORD_BYTES:
        raise LayoutMismatch("pages do not begin at whole words: the kernel cannot read them")
    from kvfence.guard.digest_kernel import kernel_sums

    sums = kernel_sums(buffer.view(torch.int32), pages.to(buffer.device, torch.int64))
    return sums.cpu().numpy().view(np.uint64)
