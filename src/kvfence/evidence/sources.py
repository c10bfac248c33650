"""Opens whatever evidence a person names: files, globs, standard input, rotated and compressed sets, in bounded memory.

What a thing is, is told from its bytes, never from its name. URLs are not opened here (``kvfence.evidence.endpoints``).
"""

import codecs
import glob
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from backports import zstd
from msgspec import Struct

from kvfence.core.errors import EvidenceError

_ROTATED = re.compile(r"^(?P<stem>.{1,4000}?)\.(?P<age>\d{1,3})(?:\.(?:gz|zst|bz2|xz))?$", re.DOTALL)
_PACKED = re.compile(r"\.(?:gz|zst|bz2|xz)$")
BLOCK_BYTES = 1 << 22
CARRY_BYTES_MAX = 1 << 23
"""A line longer than this is handed on in pieces: memory stays bounded whatever the file."""

DOCUMENT_BYTES_MAX = 1 << 26
"""A JSON, YAML or configuration document is read whole up to this size."""

HEAD_BYTES = 1 << 16
AHEAD_BYTES = 1 << 16
FILES_MAX = 10_000
UNREAD = "cannot be read to its end"
"""Stands in the remark about a source of which a part is not known."""
_BROKEN = (EOFError, OSError, ValueError, zlib.error, zstd.ZstdError, lzma.LZMAError)
SPEC_STDIN = "-"

_GZIP, _ZSTD, _BZ2, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00"


class Block(Struct, frozen=True):
    """Whole lines of a text (or a piece of an over-long one), the number of the first, and how the text goes on."""

    data: bytes
    first_line: int
    after: bytes = b""


class Opened(Struct):
    """An open source: its name as shown, and its bytes, decompressed and in UTF-8."""

    name: str
    stream: BinaryIO
    layers: list[BinaryIO] = []
    problems: list[str] = []

    def blocks(self) -> Iterator[Block]:
        """Blocks of whole lines, bounded; ends quietly where a compressed file is cut off."""
        return blocks(self.stream, self.problems)

    def close(self) -> None:
        """Close the file and what was opened around it; standard input stays open."""
        for layer in self.layers:
            if layer is not sys.stdin.buffer:
                layer.close()


def expand(spec: str) -> list[str]:
    """The files a SOURCE names: itself, the matches of a glob, or a directory's files; ``-`` is standard input.

    Raises:
        EvidenceError: nothing there.
    """
    if spec == SPEC_STDIN:
        return [spec]
    path = Path(spec)
    if path.is_dir():
        found = sorted(str(each) for each in path.rglob("*") if each.is_file() and not each.name.startswith("."))
    elif path.exists():
        return [spec]
    elif glob.has_magic(spec):
        found = sorted(each for each in glob.glob(spec, recursive=True) if os.path.isfile(each))
    else:
        raise EvidenceError(f"{spec}: no such file; name a log, a manifest, a URL (http://...) or - for standard input")
    if not found:
        raise EvidenceError(f"{spec}: no file there; check the pattern or the directory")
    if len(found) > FILES_MAX:
        raise EvidenceError(f"{spec}: {len(found)} files; name at most {FILES_MAX}")
    return found


def rotated(names: list[str]) -> list[list[str]]:
    """Files of one rotated log together, oldest first: ``a.log.2.gz``, ``a.log.1``, ``a.log``.

    Numbered files without the log itself (``node.0``, ``node.1``) may be several processes': each stays alone.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        match = _ROTATED.match(name)
        stem, age = (match["stem"], int(match["age"])) if match else (_PACKED.sub("", name), 0)
        groups.setdefault(stem, []).append((age, name))
    found: list[list[str]] = []
    for stem, each in groups.items():
        ordered = [name for _, name in sorted(each, key=lambda pair: (-pair[0], pair[1]))]
        is_log = any(name == stem or _PACKED.sub("", name) == stem for name in ordered)
        found += [ordered] if is_log else [[name] for name in ordered]
    return found


def open_source(name: str) -> Opened:
    """Open one file or standard input.

    Raises:
        EvidenceError: it cannot be read.
    """
    if name == SPEC_STDIN:
        return _opened("-", sys.stdin.buffer)
    try:
        raw = open(name, "rb")  # noqa: SIM115 -- the caller reads it to its end
    except OSError as error:
        raise EvidenceError(f"{name}: {error.strerror or error}; give the auditor read access") from error
    return _opened(name, cast(BinaryIO, raw))


def open_bytes(name: str, data: bytes) -> Opened:
    """A source that is already in memory (an answer of an endpoint, a test)."""
    return _opened(name, io.BytesIO(data))


def blocks(stream: BinaryIO, problems: list[str] | None = None) -> Iterator[Block]:
    """Cut a byte stream into blocks that end at a line's end; an over-long line is cut into pieces."""
    held, line = b"", 1
    for whole in _wholes(stream, problems if problems is not None else []):
        if held:
            yield Block(held, line, whole[:AHEAD_BYTES])
            line += held.count(b"\n")
        held = whole
    if held:
        yield Block(held, line)


def _wholes(stream: BinaryIO, problems: list[str]) -> Iterator[bytes]:
    """Pieces of whole lines; the last takes the unfinished line along."""
    held, carry = b"", b""
    while chunk := _read(stream, BLOCK_BYTES, problems):
        data = carry + chunk if carry else chunk
        cut = data.rfind(b"\n") + 1
        if cut == 0 and len(data) < CARRY_BYTES_MAX:
            carry = data
            continue
        if held:
            yield held
        held, carry = (data[:cut], data[cut:]) if cut else (data, b"")
    if held or carry:
        yield held + carry


def _read(stream: BinaryIO, size: int, problems: list[str] | None = None) -> bytes:
    """The next bytes; where a compressed file is cut off or broken, those before the break, and a remark."""
    parts: list[bytes] = []
    held = 0
    try:
        while held < size and (part := cast(io.BufferedReader, stream).read1(size - held)):
            parts.append(part)
            held += len(part)
    except _BROKEN as error:
        remark = f"the source {UNREAD} ({type(error).__name__}): what follows is unknown"
        if problems is not None and remark not in problems:
            problems.append(remark)
    return b"".join(parts)


def _opened(name: str, raw: BinaryIO) -> Opened:
    layers: list[BinaryIO] = [raw]
    stream = _decoded(raw, layers)
    return Opened(name, stream, layers[::-1])


def _decoded(stream: BinaryIO, layers: list[BinaryIO]) -> BinaryIO:
    """The stream decompressed and in UTF-8, as its first bytes say, through up to three layers."""
    buffered = stream
    if not isinstance(stream, io.BufferedReader):
        buffered = _layer(stream, layers)
    for _ in range(3):
        head = _peek(buffered)
        if head.startswith(_GZIP):
            inner: object = gzip.GzipFile(fileobj=buffered)
        elif head.startswith(_ZSTD):
            inner = zstd.ZstdFile(buffered)
        elif head.startswith((_BZ2, _XZ)):
            inner = _rare(buffered, head)
        else:
            break
        buffered = _layer(_Steady(cast(io.BufferedReader, inner)), layers)
    if _peek(buffered).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _layer(_Recoded(buffered, "utf-16"), layers)
    return buffered


def _layer(inner: object, layers: list[BinaryIO]) -> BinaryIO:
    buffered = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, inner), BLOCK_BYTES))
    layers.append(buffered)
    return buffered


def _peek(stream: BinaryIO) -> bytes:
    try:
        return cast(io.BufferedReader, stream).peek(8)[:8]
    except _BROKEN:
        return b""


def _rare(stream: BinaryIO, head: bytes) -> object:
    import bz2

    return bz2.BZ2File(stream) if head.startswith(_BZ2) else lzma.LZMAFile(stream)


class _Steady(io.RawIOBase):
    """Gives what a decompressor has, piece by piece, so that what stands before a break is not lost with it."""

    def __init__(self, inner: io.BufferedReader) -> None:
        super().__init__()
        self._inner = inner

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill the buffer with the next piece."""
        view = memoryview(cast(bytearray, buffer))
        piece = self._inner.read1(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the decompressor too."""
        if not self.closed:
            self._inner.close()
        super().close()


class _Recoded(io.RawIOBase):
    """Reads another encoding as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._left = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill the buffer with as much UTF-8 as there is."""
        view = memoryview(cast(bytearray, buffer))
        while not self._left:
            chunk = _read(self._stream, BLOCK_BYTES)
            self._left = self._decoder.decode(chunk, final=not chunk).encode()
            if not chunk and not self._left:
                return 0
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
