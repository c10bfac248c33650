"""What an answer is made of on its way to the client, before any route has worded it.

Not for: how it is made (``sessions.py``) or worded (``answers.py``).
"""

from msgspec import Struct

from kvfence.core.request import without_content


class SaidToken(Struct, frozen=True):
    """One token and its log probability, and the likeliest in its place, as bytes of text.

    Units:
        offset: characters of the texts of all tokens before it.
    """

    text: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    offset: int

    __repr__ = without_content


class CallPart(Struct, frozen=True):
    """A tool call, or more of the arguments of one that has begun; then ``id`` and ``name`` are empty."""

    number: int
    arguments: str
    id: str = ""
    name: str = ""

    __repr__ = without_content


class Piece(Struct, frozen=True):
    """What may be shown now of one choice; nothing at all where tokens came but no whole character."""

    text: str = ""
    index: int = 0
    tokens: tuple[SaidToken, ...] = ()
    calls: tuple[CallPart, ...] = ()

    __repr__ = without_content

    def __bool__(self) -> bool:
        """Is there anything to show?"""
        return bool(self.text or self.tokens or self.calls)


class Finish(Struct, frozen=True):
    """One choice is complete. ``reason`` is OpenAI's finish_reason."""

    reason: str
    index: int = 0
