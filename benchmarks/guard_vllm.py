"""What vLLM's guard costs a scheduler's step, by running requests, and a worker a block: microseconds of CPU.

A step of decode: every request's table is followed, one in 32 gets a block, and the sweep takes its share. Beside it
the same by brute force: every table of every request compared whole. vLLM is not needed.

Prints a table; ``--json`` prints one JSON document instead.
"""

import argparse
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvfence.guard.vllm.ledger import Ledger
from kvfence.guard.vllm.memory import BlockMemory

BLOCKS_EACH = 512
STEPS = 400
BLOCK_BYTES = 737_280
"""SmolLM2-135M in bf16, 32 tokens: 30 layers."""


class Pool:
    """As much of vLLM's pool as the ledger sees."""

    def __init__(self, number: int) -> None:
        self.blocks = [SimpleNamespace(block_id=n, ref_cnt=0, is_null=n == 0) for n in range(number)]
        self._next = 1

    def get_new_blocks(self, number: int) -> list[Any]:
        """Grant the next ones."""
        given = self.blocks[self._next : self._next + number]
        self._next += number
        for block in given:
            block.ref_cnt = 1
        return given


def step_us(requests: int) -> tuple[float, float]:
    """Give what a step costs, and what the comparison of all tables would."""
    pool = Pool(requests * (BLOCKS_EACH + STEPS) + 1)
    ledger = Ledger(pool)
    tables = {str(n): [block.block_id for block in pool.get_new_blocks(BLOCKS_EACH)] for n in range(requests)}
    for name, blocks in tables.items():
        ledger.extend(name, blocks)
    ledger.step(tables, lambda _: None)
    look = {name: (blocks,) for name, blocks in tables.items()}
    began = time.process_time()
    for number in range(STEPS):
        for name in list(tables)[number % 32 :: 32]:
            (block,) = pool.get_new_blocks(1)
            tables[name].append(block.block_id)
            ledger.extend(name, (block.block_id,))
        if ledger.step(tables, look.get):
            raise SystemExit("an honest table was called broken")
    each = (time.process_time() - began) / STEPS * 1e6
    began = time.process_time()
    for name, blocks in tables.items():
        noted = ledger._tables[name]
        if any(noted[block] != ledger._serials[block] for block in blocks):
            raise SystemExit("an honest table was called broken")
    return each, (time.process_time() - began) * 1e6


def digest_us(blocks: int = 200) -> float:
    """Give what a block's digest costs."""
    rows = np.ones((8, 3, 32, 128), np.uint16)

    class Tensor:
        device = SimpleNamespace(type="cpu")
        shape = rows.shape

        def element_size(self) -> int:
            return rows.itemsize

        def stride(self) -> tuple[int, ...]:
            return tuple(each // rows.itemsize for each in rows.strides)

        def data_ptr(self) -> int:
            return int(rows.ctypes.data)

    names = [str(n) for n in range(30)]
    group = SimpleNamespace(layer_names=names, kv_cache_spec=SimpleNamespace(block_size=32, head_size=64))
    memory = BlockMemory(dict.fromkeys(names, Tensor()), [group], 8)
    began = time.process_time()
    for number in range(blocks):
        memory.digest_of(0, number % 8)
    return (time.process_time() - began) / blocks * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    steps = {requests: step_us(requests) for requests in (1, 8, 64, 256)}
    digest, load = digest_us(), os.getloadavg()[0]
    if given.json:
        found = {str(n): {"step_us": a, "whole_us": b} for n, (a, b) in steps.items()}
        sys.stdout.write(json.dumps({"steps": found, "digest_us": digest, "load": load}) + "\n")
        return
    print(f"{'requests':>8} {'a step, us':>12} {'all tables, us':>15}   ({BLOCKS_EACH} blocks each, load {load:.1f})")
    for requests, (each, whole) in steps.items():
        print(f"{requests:>8} {each:>12.1f} {whole:>15.1f}")
    print(f"a block of {BLOCK_BYTES:,} bytes: {digest:.1f} us")


if __name__ == "__main__":
    main()
