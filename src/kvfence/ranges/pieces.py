"""The practice model's tokens: pieces of at most four characters, so that a token's text stands in its id.

A token that is read out of a page says its own text: no vocabulary is looked up, and what a foreign page holds can be
read. Implements ``gateway.translate.TextTokenizer``. Not for: what is answered (``practice.py``).
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvfence.models.tool_formats import ToolFormat

ASCII_CHARS, OTHER_BYTES = 4, 3
_ASCII = 1 << 28
EMPTY, SYSTEM, USER, BOT, END = range(5)
"""EMPTY is what a slot holds that nobody ever wrote."""

NAMES = {"<|sys|>": SYSTEM, "<|user|>": USER, "<|bot|>": BOT, "<|end|>": END}
ROLES = {"system": "<|sys|>", "assistant": "<|bot|>"}
VOCAB_SIZE = 2 * _ASCII
LONGEST_BYTES = max(len(name) for name in NAMES)

_WORDS = re.compile("|".join([*map(re.escape, NAMES), r" ?\w+", r" ?[^\w\s]", r"\s"]))


def piece_id(piece: bytes) -> int:
    """Give the id of 1 to 3 bytes, or of 4 ASCII characters; ids are below 2**32."""
    if len(piece) <= OTHER_BYTES:
        return len(piece) << 24 | int.from_bytes(piece, "big")
    return _ASCII | sum(byte << 7 * at for at, byte in enumerate(piece))


def piece_bytes(token_id: int) -> bytes:
    """Give the text of a token, nothing for one of the names; any number is some token."""
    if token_id & _ASCII:
        return bytes(token_id >> 7 * at & 0x7F for at in range(ASCII_CHARS))
    return (token_id & 0xFFFFFF).to_bytes(OTHER_BYTES, "big")[OTHER_BYTES - min(token_id >> 24 & 3, OTHER_BYTES) :]


SPACE = piece_id(b" ")


def _pieces(text: str) -> Iterator[int]:
    for found in _WORDS.finditer(text):
        word = found.group()
        if word in NAMES:
            yield NAMES[word]
            continue
        encoded, size = word.encode(), ASCII_CHARS if word.isascii() else OTHER_BYTES
        for at in range(0, len(encoded), size):
            yield piece_id(encoded[at : at + size])


class PieceTokenizer:
    """Text to pieces and back."""

    vocab_size = VOCAB_SIZE
    longest_token_bytes = LONGEST_BYTES
    takes_tools = False
    tool_format: ToolFormat | None = None

    def encode(self, text: str, num_tokens_max: int, *, add_special: bool = False) -> list[int]:  # noqa: ARG002
        """Tokenise, stopping at ``num_tokens_max + 1`` ids; lone surrogates count as question marks."""
        ids: list[int] = []
        for token_id in _pieces(text.encode("utf-8", "replace").decode()):
            ids.append(token_id)
            if len(ids) > num_tokens_max:
                break
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Give the bytes that one token stands for."""
        return piece_bytes(token_id)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:  # noqa: ARG002
        """Give the prompt of a chat: each message between its role's name and an end, then the answer's opening."""
        said = (f"{ROLES.get(each['role'], '<|user|>')}{each['content']}<|end|>" for each in messages)
        return "".join(said) + "<|bot|>"

    def detokenizer(self, context: Sequence[int] = (), shown: Sequence[str] = ()) -> "PieceStream":  # noqa: ARG002
        """Begin to turn generated ids into text."""
        return PieceStream()


class PieceStream:
    """Generated ids to text as they come; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Take more ids; give the text that is complete by now."""
        return self._decoder.decode(b"".join(map(piece_bytes, token_ids)))

    def flush(self) -> str:
        """Give what is left."""
        return self._decoder.decode(b"", final=True)
