"""Stands in for SGLang's CUDA kernels on a machine without a GPU: found on PYTHONPATH by the engine's processes.

SGLang imports the ``*_cpu`` names without asking whether the machine has them; one of them is needed on the plain
path, the others raise when called. ``torch.ops.sgl_kernel`` stays empty, so that SGLang takes its native torch layers.
"""

from collections.abc import Callable
from typing import Any


def assign_req_to_token_pool_cpu(rows: Any, table: Any, starts: Any, ends: Any, locations: Any, *_: Any) -> None:
    """Write each request's new slots into its row of the table, between its start and its end."""
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = locations[taken : taken + end - start].to(table.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not part of the stand-in for sgl_kernel")

    return missing
