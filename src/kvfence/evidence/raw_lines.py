"""Lines as bytes in a block: decoded when wanted, bounded, with what follows them.

Read ``scan.py`` first.
"""

from collections.abc import Callable, Iterator

from kvfence.evidence.lines import Unwrapped
from kvfence.evidence.sources import Block

LINE_BYTES_MAX = 1 << 20
"""A longer line is read up to here from its start, and around each anchor beyond that."""

AHEAD_LINES_MAX = 60


class RawLine:
    """A line's bytes in its block, and the lines after it."""

    __slots__ = ("after", "continues", "cut", "data", "end", "is_unended", "number", "start")

    def __init__(self, block: Block, start: int, end: int, number: int) -> None:
        self.data, self.after, self.start, self.end, self.number = block.data, block.after, start, end, number
        self.cut = end - start > LINE_BYTES_MAX
        self.continues = self.data[max(0, start - 3) : start].rstrip(b"\r\n").endswith(b"\\")
        self.is_unended = end == len(self.data)

    def text(self, anchor: int) -> str:
        """The line decoded; of an over-long one, the part around the anchor."""
        start = self.start if anchor - self.start < LINE_BYTES_MAX // 2 else anchor - 4096
        return _text(self.data[start : min(self.end, start + LINE_BYTES_MAX)])

    def following(self, count: int) -> Iterator[str]:
        """Up to ``count`` lines after this one, each bounded; into the next block as far as it is known."""
        for data, start in ((self.data, self.end + 1), (self.after, 0)):
            position = start
            while position < len(data) and count > 0:
                end = data.find(b"\n", position)
                end = len(data) if end < 0 else end
                yield _text(data[position : min(end, position + LINE_BYTES_MAX)])
                position, count = end + 1, count - 1


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\x00", "")


def look_ahead(inner: tuple[str, ...], raw: RawLine) -> Callable[[int], tuple[str, ...]]:
    """What looks up the lines that follow: the rest of a message of several lines, then the raw lines after it."""

    def look(count: int) -> tuple[str, ...]:
        count = min(count, AHEAD_LINES_MAX)
        found = list(inner[:count])
        found += [Unwrapped(text).text for text in raw.following(count - len(found))]
        return tuple(found)

    return look


def segments(text: str) -> list[str]:
    """Progress bars overwrite a line with carriage returns: each piece is a line of its own."""
    return text.rstrip("\r").split("\r") if "\r" in text else [text]


def completed(wrapped: Unwrapped, raw: RawLine) -> str:
    """The text of a line with the pieces that a container runtime cut off it."""
    if not wrapped.partial:
        return wrapped.text
    parts, length = [wrapped.text], len(wrapped.text)
    for following in raw.following(AHEAD_LINES_MAX):
        more = Unwrapped(following)
        parts.append(more.text)
        length += len(more.text)
        if not more.partial or length > LINE_BYTES_MAX:
            break
    return "".join(parts)
