"""bfloat16 on CPUs that have no bfloat16 arithmetic.

There a bfloat16 matrix product is emulated element by element. Widening the weights to float32 for the product and
narrowing its result gives the same rounding (both accumulate in float32) at a fraction of the time.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NARROW_ROWS_MAX = 2
"""Up to this many rows the emulated product is a dot per output and reads half the bytes: faster as it is."""

_FAST_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


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


def has_fast_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tell whether this CPU computes bfloat16 natively; False where that cannot be read."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return bool(_FAST_FLAGS & set(flags.split())) and torch.backends.mkldnn.is_available()
