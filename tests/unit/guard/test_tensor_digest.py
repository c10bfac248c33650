"""Tensors on the host have the digest of their bytes."""

import numpy as np
import pytest

from kvfence.core.errors import LayoutMismatch
from kvfence.guard.digest import page_sums

torch = pytest.importorskip("torch")
tensor_digest = pytest.importorskip("kvfence.guard.tensor_digest")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "float8_e4m3fn"])
def test_chosen_pages_of_any_type_are_digested_as_bytes(dtype: str) -> None:
    """Whatever the elements are, the digest is over the bytes of the pages named, in the order named."""
    raw = np.random.default_rng(1).integers(0, 256, (6, 48), dtype=np.uint8)
    buffer = torch.from_numpy(raw).view(getattr(torch, dtype))
    assert (tensor_digest.tensor_sums(buffer, torch.tensor([4, 0, 5])) == page_sums(raw[[4, 0, 5]])).all()


def test_a_part_of_a_wider_row_is_a_page() -> None:
    """Rows may be apart; only a page's own bytes count."""
    raw = np.random.default_rng(2).integers(0, 256, (6, 48), dtype=np.uint8)
    sums = tensor_digest.tensor_sums(torch.from_numpy(raw)[:, 16:32], torch.tensor([1, 3]))
    assert (sums == page_sums(raw[[1, 3], 16:32])).all()


def test_elements_that_are_apart_are_refused() -> None:
    """A page whose bytes do not stand side by side is another layout, and is not guessed at."""
    with pytest.raises(LayoutMismatch, match="side by side"):
        tensor_digest.tensor_sums(torch.zeros((8, 16), dtype=torch.uint8).T, torch.tensor([0]))
