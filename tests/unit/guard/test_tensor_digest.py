"""Pages on a device have the digest of their bytes; what cannot be digested there is refused before it is needed."""

import sys
from typing import Any

import numpy as np
import pytest

from kvfence.core.errors import SettingsError
from kvfence.guard.digest import digest_on, page_sums

torch = pytest.importorskip("torch")
tensor_digest = pytest.importorskip("kvfence.guard.tensor_digest")

on_devices = pytest.mark.parametrize(
    "place", ["device", pytest.param("kernel", marks=pytest.mark.digest)], indirect=True
)


@on_devices
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "float8_e4m3fn"])
def test_chosen_pages_of_any_type_are_digested_as_bytes(place: str, dtype: str) -> None:
    """Whatever the elements are, the digest is over the bytes of the pages named, in the order named."""
    raw = np.random.default_rng(1).integers(0, 256, (2, 6, 48), dtype=np.uint8)
    pages = tensor_digest.DevicePages([torch.from_numpy(each).view(getattr(torch, dtype)) for each in raw])
    chosen = np.array([4, 0, 5])
    assert (pages.sums(chosen) == np.stack([page_sums(each[chosen]) for each in raw])).all()


@on_devices
def test_a_part_of_a_wider_row_is_a_page(place: str) -> None:
    """Rows may be apart; only a page's own bytes count."""
    raw = np.random.default_rng(2).integers(0, 256, (6, 48), dtype=np.uint8)
    pages = tensor_digest.DevicePages([torch.from_numpy(raw)[:, 16:32]])
    assert (pages.sums(np.array([1, 3]))[0] == page_sums(raw[[1, 3], 16:32])).all()


def test_an_address_is_read_where_it_is() -> None:
    """An engine that names its buffers by address has them digested without a copy."""
    raw = np.random.default_rng(3).integers(0, 256, (6, 48), dtype=np.uint8)
    rows = tensor_digest.rows_at(raw.ctypes.data, raw.nbytes, 48, "cpu")
    raw[2, 5] ^= 1
    assert (rows.numpy() == raw).all()


@pytest.mark.parametrize(
    ("buffer", "says"),
    [
        (torch.zeros((8, 16), dtype=torch.uint8).T, "side by side"),
        (torch.zeros((4, 6), dtype=torch.uint8), "pages of 6 bytes"),
        (torch.zeros((4, 10), dtype=torch.uint8)[:, :8], "10 apart"),
        (torch.zeros((4, 12), dtype=torch.uint8)[:, 2:10], "no whole words"),
        (torch.zeros((4, 0), dtype=torch.uint8), "pages of 0 bytes"),
    ],
    ids=["apart", "no words", "rows between words", "begun within a word", "nothing"],
)
def test_what_the_kernel_cannot_read_is_refused_by_its_layout(buffer: Any, says: str) -> None:
    """At the start, and not with the first request."""
    with pytest.raises(SettingsError, match=says):
        tensor_digest.DevicePages([buffer])


def test_a_device_that_computes_other_sums_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is trusted: what a device says of pages that a host knows is compared at the start."""

    def wrong(words: Any, pages: Any) -> Any:
        sums = page_sums(words.numpy()[pages.numpy()].view(np.uint8))
        return torch.from_numpy(sums.view(np.int64)) + (len(pages) == 16)

    monkeypatch.setattr(tensor_digest, "_kernel_on", lambda _device: wrong)
    with pytest.raises(SettingsError, match="not what a host computes"):
        tensor_digest.DevicePages([torch.zeros((4, 8), dtype=torch.uint8)])


def test_without_that_comparison_it_would_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is what refuses it."""
    zeros = lambda _words, pages: torch.zeros((len(pages), 2), dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(tensor_digest, "_kernel_on", lambda _device: zeros)
    monkeypatch.setattr(tensor_digest, "TRIED", ())
    pages = tensor_digest.DevicePages([torch.zeros((4, 8), dtype=torch.uint8)])
    assert not pages.sums(np.array([1])).any()


def test_a_device_without_triton_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are not copied to the host instead, which nobody would notice but by the time that it takes."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "kvfence.guard.digest_kernel", raising=False)
    with pytest.raises(SettingsError, match="no triton here"):
        tensor_digest.DevicePages([torch.zeros((4, 8), dtype=torch.uint8)])


def test_a_device_that_has_no_digest_is_refused_by_its_name() -> None:
    """The number of a device is not its kind."""
    assert digest_on("cuda:3") == digest_on("cuda") != digest_on("cpu")
    with pytest.raises(SettingsError, match="xpu"):
        digest_on("xpu:0")


PAGES, ROWS = 3, 2
SHAPES = {
    "dense": lambda: torch.arange(PAGES * 64).view(PAGES, 4, 16),
    "kernel blocks": lambda: torch.arange(PAGES * ROWS * 64).view(PAGES * ROWS, 4, 16),
    "heads before tokens": lambda: torch.arange(PAGES * 64).view(PAGES, 2, 8, 4).transpose(1, 2),
    "layers within a block": lambda: torch.arange(PAGES * 128).view(PAGES, 2, 4, 16)[:, 1],
    "heads apart": lambda: torch.arange(PAGES * 256).view(PAGES, 2, 2, 4, 16)[:, :, 1],
    "kernel blocks of several layers": lambda: torch.arange(PAGES * ROWS * 128).view(PAGES * ROWS, 2, 4, 16)[:, 0],
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_element_of_a_page_is_in_one_piece_of_it_and_no_other(name: str) -> None:
    """However a cache lies in memory, its pieces hold the bytes of each page, once."""
    cache = SHAPES[name]()
    rows = cache.shape[0] // PAGES
    pieces = tensor_digest.runs_of(cache, PAGES, rows)
    for page in range(PAGES):
        held = torch.cat([piece[page] for piece in pieces])
        assert sorted(held.tolist()) == sorted(cache[page * rows : (page + 1) * rows].flatten().tolist())
    assert len(pieces) == (2 if name in ("heads apart", "kernel blocks of several layers") else 1)


def test_a_page_in_too_many_pieces_is_refused_by_its_strides() -> None:
    """Bytes of which none stands beside the next are another layout."""
    with pytest.raises(SettingsError, match="strides"):
        tensor_digest.runs_of(torch.zeros((2, 400))[:, ::2], 2, 1)
