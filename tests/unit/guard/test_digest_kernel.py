"""The kernel gives the host's sums bit for bit. Under Triton's interpreter: `make test-digest` fetches Triton."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvfence.guard.digest import page_sums

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="no Triton here: `make test-digest` fetches it and runs these")
torch = pytest.importorskip("torch")
kernel = pytest.importorskip("kvfence.guard.digest_kernel")
pytestmark = pytest.mark.digest


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from kvfence.guard.digest_kernel import _weigh

kinds = {"words": "*i32", "row_words": "i64", "num_words": "i32", "span": ("*i64", "i32"), "sums": "*i64"}
for target, made in ((("cuda", 80, 32), "cubin"), (("cuda", 90, 32), "cubin"), (("hip", "gfx942", 64), "hsaco")):
    code = compile(ASTSource(_weigh, kinds, {}), target=GPUTarget(*target)).asm
    print(target[1], len(code[made]) > 0)
"""


@pytest.mark.parametrize("num_words", [1, 2, 1023, 1024, 1025, 2500])
def test_the_kernel_gives_the_hosts_sums(num_words: int) -> None:
    """Below, at and above a block of words, for more pages than a program takes, in any order and twice."""
    rng = np.random.default_rng(num_words)
    pool = rng.integers(0, 2**32, (20, num_words), dtype=np.uint32)
    pages = np.array([*rng.permutation(20)[:17], 3, 3])
    sums = kernel.kernel_sums(torch.from_numpy(pool.view("i4")), torch.from_numpy(pages))
    assert (sums.numpy().view("u8") == page_sums(pool.view("u1")[pages])).all()


def test_rows_may_be_apart() -> None:
    """A pool whose pages stand within wider rows is read by its stride."""
    pool = np.random.default_rng(9).integers(0, 2**32, (5, 64), dtype=np.uint32)
    part = torch.from_numpy(pool.view("i4"))[:, 8:24]
    sums = kernel.kernel_sums(part, torch.tensor([4, 1]))
    assert (sums.numpy().view("u8") == page_sums(np.ascontiguousarray(pool[[4, 1], 8:24]).view("u1"))).all()


@pytest.mark.parametrize("value", [0, 2**32 - 1, 2**31])
def test_words_at_the_edges_of_their_type_are_not_signed(value: int) -> None:
    """A word with its top bit set is a large number and no negative one."""
    pool = np.full((2, 32), value, dtype=np.uint32)
    sums = kernel.kernel_sums(torch.from_numpy(pool.view("i4")), torch.tensor([1]))
    assert (sums.numpy().view("u8") == page_sums(pool.view("u1")[1:])).all()


def test_no_pages_have_no_sums() -> None:
    """No program is started for nothing."""
    empty = torch.empty(0, dtype=torch.int64)
    assert kernel.kernel_sums(torch.zeros((2, 4), dtype=torch.int32), empty).shape == (0, 2)


def test_the_compiler_takes_it(tmp_path: Path) -> None:
    """Triton makes machine code of it for two of NVIDIA's generations and one of AMD's, without such a processor."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stdout.splitlines() == ["80 True", "90 True", "gfx942 True"]
