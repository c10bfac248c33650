"""bfloat16 linear layers on CPUs without bfloat16 arithmetic."""

from pathlib import Path

import pytest
import torch
from torch import nn

from kvfence.models.linear import WidenedLinear, has_fast_bfloat16, has_wide_vectors, widen_linears


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_widened_gives_the_same_numbers(rows: int, bias: bool) -> None:
    """The widened product agrees with torch's own to the last bit of bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 64, bias=bias)).to(torch.bfloat16)
    inputs = torch.randn(1, rows, 96).to(torch.bfloat16)
    expected = model(inputs)
    widen_linears(model)
    assert type(model[0]) is WidenedLinear
    got = model(inputs)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ("flags\t\t: fpu avx2 amx_bf16\n", True),
        ("flags\t\t: fpu avx512_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx2 f16c\n", False),
        ("", False),
    ],
)
def test_fast_bfloat16_is_read_from_the_flags(text: str, fast: bool, tmp_path: Path) -> None:
    """The CPU's own flags decide; nothing readable means no."""
    (tmp_path / "cpuinfo").write_text(text)
    assert has_fast_bfloat16(tmp_path / "cpuinfo") is fast
    assert has_fast_bfloat16(tmp_path / "missing") is False


def test_wide_vectors_are_read_from_the_flags(tmp_path: Path) -> None:
    """AVX-512 and SVE keep torch's products; AVX2 alone, or nothing readable, does not."""
    for text, wide in [
        ("flags\t: avx2 avx512f\n", True),
        ("Features\t: asimd sve\n", True),
        ("flags\t: avx2\n", False),
    ]:
        (tmp_path / "cpuinfo").write_text(text)
        assert has_wide_vectors(tmp_path / "cpuinfo") is wide
    assert has_wide_vectors(tmp_path / "missing") is False
