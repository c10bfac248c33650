"""The pool: freed blocks are given out again last in, first out."""

from typing import Any


class Block:
    """One block."""

    def __init__(self, block_id: int) -> None:
        self.block_id, self.ref_cnt, self.is_null, self.block_hash = block_id, 0, block_id == 0, None


class BlockPool:
    """All blocks; the first is the null block."""

    def __init__(self, number: int) -> None:
        self.blocks = [Block(number) for number in range(number)]
        self.free = self.blocks[1:]

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        """Grant."""
        given, self.free = self.free[:num_blocks], self.free[num_blocks:]
        for block in given:
            block.ref_cnt += 1
        return given

    def touch(self, blocks: Any) -> None:
        """Add a reference."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Any) -> None:
        """Take references away."""
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free.insert(0, block)
