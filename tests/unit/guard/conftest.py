"""Where pages are: in host memory, or in memory that the guard takes for a device's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfence.guard import digest


def numpy_sums(words: Any, pages: Any) -> Any:
    """Stand in for the kernel."""
    import torch

    return torch.from_numpy(digest.page_sums(words.numpy()[pages.numpy()].view(np.uint8)).view(np.int64))


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, host memory is from then on taken for a device's, where numpy stands for the kernel."""
    pytest.importorskip("torch")
    monkeypatch.setattr("kvfence.guard.tensor_digest._kernel_on", lambda _device: numpy_sums)
    return lambda: monkeypatch.setitem(digest.BY_DEVICE, "cpu", digest.NAME)


@pytest.fixture(params=["host", "device", pytest.param("kernel", marks=pytest.mark.digest)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Host memory; a device where numpy stands for the kernel; one with the kernel, under Triton's interpreter."""
    if request.param == "device":
        request.getfixturevalue("on_device")()
    if request.param == "kernel":
        pytest.importorskip("torch")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="no Triton here: `make test-digest` fetches it and runs these")
        monkeypatch.setitem(digest.BY_DEVICE, "cpu", digest.NAME)
    return str(request.param)
