"""Linear layers on CPUs.

Where the kernels are built (``native.py``), weights stand in panels and are widened as they are read. Elsewhere, on a
CPU without bfloat16 arithmetic, a bfloat16 product is emulated element by element: widening the weights to float32
for the product and narrowing its result gives the same rounding (both accumulate in float32) in a fraction of the time.
Processors with wider units than AVX2 keep torch's products: the kernels have not been measured against them.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvfence.models.native import DTYPES, IN_MAX, Kernels, pack

CPUINFO = Path("/proc/cpuinfo")

NARROW_ROWS_MAX = 2
"""Up to this many rows the emulated product is a dot per output and reads half the bytes: faster as it is."""

_WIDE_FLAGS = frozenset({"avx512f", "sve", "sve2"})
_FAST_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


class PackedLinear(nn.Linear):
    """A linear layer whose weight stands in panels; the weight itself is gone."""

    kernels: Kernels
    packed: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Give input @ weight.T + bias. Shapes: [..., in] -> [..., out]."""
        return self.kernels.product(input, self.packed, self.out_features, self.bias)


def pack_linears(model: nn.Module, kernels: Kernels) -> None:
    """Make every plain linear layer multiply by the kernels; a weight shared with another layer stays there."""
    for module in model.modules():
        if type(module) is nn.Linear and module.in_features <= IN_MAX and module.weight.dtype in DTYPES:
            packed = pack(module.weight)
            del module.weight
            module.__class__ = PackedLinear
            module.register_buffer("packed", packed, persistent=False)
            module.kernels = kernels  # type: ignore[assignment]


class WidenedLinear(nn.Linear):
    """A bfloat16 linear layer that multiplies in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Give input @ weight.T + bias. Shapes: [..., in] -> [..., out]."""
        if input.numel() <= NARROW_ROWS_MAX * self.in_features:
            return F.linear(input, self.weight, self.bias)
        bias: Tensor | None = self.bias
        wide = F.linear(input.float(), self.weight.float(), bias if bias is None else bias.float())
        return wide.to(input.dtype)


def widen_linears(model: nn.Module) -> None:
    """Make every plain linear layer of a model multiply in float32."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = WidenedLinear


def has_fast_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Tell whether this CPU computes bfloat16 natively; False where that cannot be read."""
    return bool(_FAST_FLAGS & _flags(cpuinfo)) and torch.backends.mkldnn.is_available()


def has_wide_vectors(cpuinfo: Path = CPUINFO) -> bool:
    """Tell whether this CPU has vectors wider than the kernels use; False where that cannot be read."""
    return bool(_WIDE_FLAGS & _flags(cpuinfo))


def _flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
