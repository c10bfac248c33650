"""Two processes agree by torch's own collective, as an engine's ranks do."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.digest

RANK = """
import sys
import torch
from torch import distributed
from kvfence.guard.agreement import agree

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def minimum(values):
    told = torch.tensor(values, dtype=torch.int64)
    distributed.all_reduce(told, op=distributed.ReduceOp.MIN)
    return told.tolist()

print(agree([("a", True), ("b", rank == 0), ("c", rank == 1)], minimum))
print(agree([("a", True)] * (1 + rank), minimum))
distributed.destroy_process_group()
"""


def test_two_processes_agree(tmp_path: Path) -> None:
    """Each says what it found; both are told the same, and nothing where they speak of different things."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PATH": ""},
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=90) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], [error[-500:] for _, error in told]
    assert [out.splitlines() for out, _ in told] == [
        ["(True, False, False)", "(False,)"],
        ["(True, False, False)", "(False, False)"],
    ]
