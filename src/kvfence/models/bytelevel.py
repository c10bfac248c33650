"""Make a byte-level BPE tokenizer.json from a vocabulary and merges. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def save_bytelevel_tokenizer(
    path: Path, vocab: dict[str, int], merges: Iterable[tuple[str, str]], special: Sequence[str], split_digits: bool
) -> None:
    """Write a tokenizer whose tokens are bytes and merges of bytes, with some special tokens matched whole."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer: Any = Tokenizer(models.BPE(vocab=vocab, merges=list(merges), fuse_unk=False))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(path))


def byte_alphabet() -> list[str]:
    """Give the 256 characters that stand for bytes, in byte order.

    Source: the byte-to-character table of GPT-2's tokenizer: printable Latin-1 stands for itself.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
