"""The bytes that a token of a vocabulary stands for, by the kind of tokenizer. No torch.

Not for: text, which whole characters make (``tokenizer.py``).
"""

import re
from collections.abc import Callable, Set

from kvfence.models.bytelevel import byte_alphabet

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTES = {char: byte for byte, char in enumerate(byte_alphabet())}


def spelling_of(kinds: Set[str]) -> Callable[[str], bytes]:
    """Choose how tokens are spelt, from the steps that the tokenizer names."""
    if "ByteLevel" in kinds:
        return _byte_level
    return _word_piece if "WordPiece" in kinds else _sentence_piece


def _byte_level(token: str) -> bytes:
    """Each character stands for a byte (GPT-2)."""
    return b"".join(bytes((_BYTES[char],)) if char in _BYTES else char.encode("utf-8", "replace") for char in token)


def _sentence_piece(token: str) -> bytes:
    """A low line stands for a space, and some tokens name one byte."""
    byte = _BYTE.fullmatch(token)
    return bytes((int(byte[1], 16),)) if byte else token.replace("▁", " ").encode("utf-8", "replace")


def _word_piece(token: str) -> bytes:
    """Two hashes join a token to the one before."""
    return token.removeprefix("##").encode("utf-8", "replace")
