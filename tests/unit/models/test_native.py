"""The C kernels: the numbers torch gives, in the widths and shapes that models have; built once, or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kvfence.models import native
from kvfence.models.attention import Scoring, _attend_gathered
from kvfence.models.executor import PassRow
from kvfence.models.linear import PackedLinear, pack_linears
from kvfence.models.native import Kernels, load_kernels
from kvfence.models.plan import PassPlan
from tests.paged_runner import GREEDY

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels, built here; a machine that tests has a compiler."""
    built = load_kernels(tmp_path_factory.mktemp("cache"))
    assert built is not None, "no kernels: install a C compiler with OpenMP (gcc)"
    return built


def close(got: Tensor, expected: Tensor) -> None:
    """Equal up to one rounding of the width they are in."""
    narrow = got.dtype is torch.bfloat16
    torch.testing.assert_close(
        got.float(), expected.float(), rtol=2**-7 if narrow else 2e-5, atol=2e-3 if narrow else 2e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 25, 700])
@pytest.mark.parametrize(("inputs", "outs"), [(96, 48), (33, 41)])
def test_a_packed_layer_gives_torchs_numbers(
    kernels: Kernels, dtype: torch.dtype, rows: int, inputs: int, outs: int
) -> None:
    """Whole and broken tiles, panels and blocks, with and without bias, on several threads."""
    torch.manual_seed(rows)
    x = torch.randn(2, rows, inputs).to(dtype).transpose(0, 1)
    for bias in (True, False):
        layer = nn.Linear(inputs, outs, bias=bias)
        exact = layer.to(dtype).float()(x.float()).detach()
        model = nn.Sequential(layer.to(dtype))
        pack_linears(model, kernels)
        assert type(model[0]) is PackedLinear
        assert not hasattr(model[0], "weight")
        for threads in (1, 2):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                got = model(x)
            finally:
                torch.set_num_threads(before)
            assert got.dtype is dtype
            close(got, exact.to(dtype))


def pool(num_pages: int, size: int, heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """A pool view as the executor gets it: other layers' bytes, NaN here, stand between the pages."""
    records = torch.full((num_pages, 3, size, heads, dim), float("nan"), dtype=dtype)
    records[:, 1] = torch.randn(num_pages, size, heads, dim).to(dtype)
    return records[:, 1]


def gathered(view: Tensor, table: Tensor) -> Tensor:
    """The pages of a table side by side. Shapes: [rows, heads, slots, dim]."""
    return view[table].flatten(1, 2).transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4, 16, 16), (9, 3, 64, 64), (8, 1, 24, 40)])
@pytest.mark.parametrize(
    "options", [{}, {"window": 7}, {"softcap": 3.0}, {"sinks": True, "window": 20}, {"scale": 0.7}]
)
def test_attention_gives_the_numbers_of_the_gathered_path(
    kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int, int, int], options: dict[str, Any]
) -> None:
    """Scattered pages, ragged rows, several head sizes, windows, soft caps and sinks; nothing outside a row is read."""
    heads, kv_heads, dim, value_dim = shape
    torch.manual_seed(5)
    key, value = pool(40, 5, kv_heads, dim, dtype), pool(40, 5, kv_heads, value_dim, dtype)
    starts, free = [0, 4, 5, 23, 61], iter(np.random.default_rng(2).permutation(40).tolist())
    rows = [PassRow([1], start, [next(free) for _ in range(start // 5 + 1)], GREEDY) for start in starts]
    query = torch.randn(1, 1 + len(rows), heads, dim).to(dtype).transpose(1, 2)[0, :, 1:]
    sinks = torch.randn(heads).to(dtype) if options.get("sinks") else None
    scoring = Scoring(options.get("scale"), options.get("window", 0), options.get("softcap"), sinks)
    for group in PassPlan(rows, 5, torch.device("cpu")).groups:
        part = query[:, group.begin : group.end]
        reads = group.reads(scoring.window)
        context = (gathered(key, reads.table).float(), gathered(value, reads.table).float())
        expected = _attend_gathered(part.float(), (*context, group.mask(scoring.window)), scoring)
        for row in range(len(part[0])):  # what lies behind a row's last token is not read
            page, slot = divmod(int(reads.bounds[row, 1]), 5)
            for view in (key, value):
                view[reads.table[row, page] if page < reads.table.shape[1] and slot else 0, slot:] = float("nan")
        out = query.new_full((len(part[0]), heads, value_dim), float("nan"))
        assert kernels.attends(part, key, value)
        scale = dim**-0.5 if scoring.scale is None else scoring.scale
        kernels.attend(part, (key, value), reads, scale, out, softcap=scoring.softcap, sinks=sinks)
        close(out, expected.to(dtype))


def test_shapes_the_kernel_has_no_place_for_are_left_to_torch(kernels: Kernels) -> None:
    """A head size that is no multiple of a vector, a very large one, or another width, is not taken."""
    for dim, dtype in [(12, torch.float32), (1024, torch.float32), (16, torch.float16)]:
        view = torch.zeros(2, 4, 1, dim, dtype=dtype)
        assert not kernels.attends(torch.zeros(2, 1, dim, dtype=dtype), view, view)


def test_kernels_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second load compiles nothing; a folder that others may write to is not loaded from."""
    assert load_kernels(tmp_path) is not None
    [built] = (tmp_path / "kernels").iterdir()
    before = built.stat().st_mtime_ns
    assert load_kernels(tmp_path) is not None
    assert [path.stat().st_mtime_ns for path in (tmp_path / "kernels").iterdir()] == [before]
    (tmp_path / "kernels").chmod(0o777)
    assert load_kernels(tmp_path) is None


def test_without_a_compiler_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler on the path, or one that fails, is no error: torch does the work."""
    monkeypatch.setattr(native, "COMPILERS", ("no-such-compiler",))
    assert load_kernels(tmp_path) is None
    monkeypatch.setattr(native, "COMPILERS", ("false",))
    assert load_kernels(tmp_path) is None
    monkeypatch.setattr(native, "COMPILERS", ("true",))
    assert load_kernels(tmp_path) is None
