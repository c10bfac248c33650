"""Heads, seals and stamps in a pool's bytes, and the facts of a verification.

The head is written when a page is granted, before its first byte; the tail when it is sealed, after its last.
Nothing here decides: ``protocol/decode.py`` does, from the facts of a ``VerifyReport``.
"""

from collections.abc import Sequence

import numpy as np
import xxhash
from msgspec import Struct

from kvfence.core.errors import LayoutMismatch, StampMismatch
from kvfence.core.ids import Incarnation
from kvfence.core.invariant import require
from kvfence.core.layout import KVLayout
from kvfence.core.tags import PageStamp, PageTag, unpack_stamp, unpack_tag
from kvfence.kv.storage import HEAD_WORDS, Pages, PoolBuffer, Words

DIGEST_NAME = "xxh3_128"
"""The digest computed here; a layout that names another is refused. It stops accidents, not attackers."""


class VerifyReport(Struct, frozen=True):
    """What a verification found; every field lists pages of the pool that was verified, in prompt order.

    Units:
        bad_head: the head is not the expected origin, or changed while the digest was computed, or none was expected.
        bad_tail: the stamp behind the bytes names another origin than was expected.
        bad_count: the stamp says another number of tokens than the page should hold.
        bad_digest: the bytes do not have the digest of their stamp.
        stale_slots: slots behind the last valid token are not zero.
        num_tokens: as the stamps of pages with a right tail say.
        digest: over the ordered stamps as found, to compare with the manifest's.
    """

    num_pages: int
    num_tokens: int
    digest: str
    bad_head: tuple[int, ...] = ()
    bad_tail: tuple[int, ...] = ()
    bad_count: tuple[int, ...] = ()
    bad_digest: tuple[int, ...] = ()
    stale_slots: tuple[int, ...] = ()

    @property
    def stamps_match(self) -> bool:
        """Whether every page shows the origin it should, before and behind its bytes."""
        return not (self.bad_head or self.bad_tail)

    @property
    def clean(self) -> bool:
        """Whether nothing at all is wrong."""
        return self.stamps_match and not (self.bad_count or self.bad_digest or self.stale_slots)


class Sealed(Struct, frozen=True):
    """Stamps in page order, and whether the unused slots were zeroed (guard ``zero-tail``)."""

    stamps: tuple[PageStamp, ...]
    zeroed: bool


def pack_heads(incarnation: Incarnation, serial: int, pages: Pages) -> Words:
    """Give the heads of the tags that one grant gives these pages. Shapes: [len(pages), 4]."""
    heads = np.empty((len(pages), HEAD_WORDS), dtype="<u8")
    heads[:, :2] = np.frombuffer(bytes.fromhex(incarnation), dtype="<u8")
    heads[:, 2] = serial
    heads[:, 3] = pages
    return heads


def pack_tags(tags: Sequence[PageTag]) -> Words:
    """Give the heads of any tags. Shapes: [len(tags), 4]."""
    packed = b"".join(tag.pack() for tag in tags)
    return np.frombuffer(packed, dtype="<u8").reshape(len(tags), HEAD_WORDS)


def write_head(pool: PoolBuffer, pages: Pages, tags: Sequence[PageTag] | Words) -> None:
    """Write the heads of pages just granted, before any of their bytes.

    Shapes:
        tags: one for each page, as tags or as packed heads [len(pages), 4].
    Owner:
        The caller holds the pages GRANTED and has begun no write to them.
    """
    heads = tags if isinstance(tags, np.ndarray) else pack_tags(tags)
    require(len(heads) == len(pages), "one tag for each page")
    pool.heads[np.asarray(pages, dtype=np.intp)] = heads


def read_head(pool: PoolBuffer, page: int) -> PageTag:
    """Read the tag that the page's bytes were written under."""
    return unpack_tag(pool.heads[page].tobytes())


def read_stamp(pool: PoolBuffer, page: int) -> PageStamp:
    """Read the stamp behind the page's bytes; an unsealed page shows some stamp too, so compare it."""
    return unpack_stamp(pool.tails[page].tobytes())


def require_digest(layout: KVLayout) -> None:
    """Refuse a layout whose digest this code does not compute.

    Raises:
        LayoutMismatch: another digest is named.
    """
    if layout.digest != DIGEST_NAME:
        raise LayoutMismatch(f"layout names digest {layout.digest!r}; this build computes {DIGEST_NAME!r} only")


def seal_page(pool: PoolBuffer, tag: PageTag, num_tokens: int, zero_tail: bool = True) -> PageStamp:
    """Zero the unused slots of a page, digest it, write its stamp behind the bytes and return it.

    Units:
        num_tokens: tokens in this page, 1 <= num_tokens <= page_size.
        zero_tail: False only where a test takes guard ``zero-tail`` away.
    Owner:
        The caller holds the page GRANTED under ``tag``; after the call nobody writes to it.
    Raises:
        StampMismatch: the head shows another tag: somebody else wrote here.
        InvariantBroken: num_tokens out of range.
    """
    page = tag.page
    require(1 <= num_tokens <= pool.layout.page_size, "a sealed page holds 1 .. page_size tokens")
    if pool.heads[page].tobytes() != tag.pack():
        raise StampMismatch(f"page {page} is not under the tag it is sealed with: quarantine it")
    if zero_tail and num_tokens < pool.layout.page_size:
        _zero_unused(pool, page, num_tokens)
    stamp = PageStamp(tag, num_tokens, page_digest(pool, page))
    pool.tails[page] = np.frombuffer(stamp.pack(), dtype=pool.tails.dtype)[0]
    return stamp


def seal_pages(pool: PoolBuffer, tags: Sequence[PageTag], num_tokens: int, zero_tail: bool = True) -> Sealed:
    """Seal pages that hold ``num_tokens`` tokens in order: all full but perhaps the last."""
    counts = tokens_per_page(pool.layout.page_size, len(tags), num_tokens)
    pairs = zip(tags, counts, strict=True)
    stamps = tuple(seal_page(pool, tag, count, zero_tail) for tag, count in pairs)
    return Sealed(stamps, zero_tail)


def tokens_per_page(page_size: int, num_pages: int, num_tokens: int) -> list[int]:
    """Spread tokens over pages in order. Pages behind the last token get 0."""
    return [min(page_size, max(0, num_tokens - index * page_size)) for index in range(num_pages)]


def page_digest(pool: PoolBuffer, page: int) -> bytes:
    """Digest all segments of a page, unused slots included. Shapes: [16]."""
    return xxhash.xxh3_128_digest(pool.body(page).data)


def handoff_digest(stamps: Sequence[PageStamp]) -> str:
    """Digest stamps in page order: what a manifest promises. Units: 16 bytes as hex."""
    digest = xxhash.xxh3_128()
    for stamp in stamps:
        digest.update(stamp.pack())
    return digest.hexdigest()


def verify_pages(
    pool: PoolBuffer, pages: Sequence[int], expected_origins: Sequence[PageTag | None], num_tokens: int
) -> VerifyReport:
    """Compare landed pages with what was promised of them and report the facts.

    Heads are compared again after the digests, so that bytes that land meanwhile are seen.

    Shapes:
        expected_origins: one for each page; None where nothing was promised, and then the page is bad.
    Owner:
        The caller holds the pages and their writer has said that it is done; a late write shows as bad.
    """
    require(len(expected_origins) == len(pages), "one expected origin, or None, for each page")
    counts = tokens_per_page(pool.layout.page_size, len(pages), num_tokens)
    stamps = [read_stamp(pool, page) for page in pages]
    promised = list(zip(pages, expected_origins, strict=True))
    faults = [
        _faults(pool, page, origin, count, stamp)
        for (page, origin), count, stamp in zip(promised, counts, stamps, strict=True)
    ]
    for (page, origin), found in zip(promised, faults, strict=True):
        if not _shows(pool, page, origin):
            found.add("bad_head")
    bad = {name: tuple(page for page, found in zip(pages, faults, strict=True) if name in found) for name in _FAULTS}
    ours = (stamp.num_tokens for stamp, found in zip(stamps, faults, strict=True) if "bad_tail" not in found)
    return VerifyReport(num_pages=len(pages), num_tokens=sum(ours), digest=handoff_digest(stamps), **bad)


def copy_tail_page(pool: PoolBuffer, source: int, expected_origin: PageTag, tag: PageTag) -> None:
    """Copy a partly filled adopted page to a page of decode's own, under decode's own tag.

    The copy is unsealed: its tail is zero until decode seals it, which it need not do.

    Owner:
        The caller holds ``source`` ADOPTED and ``tag.page`` GRANTED under ``tag``.
    Raises:
        StampMismatch: the source does not show its origin before and after the copy: quarantine it.
    """
    require(source != tag.page, "a tail page is copied to another page")
    before = _shows(pool, source, expected_origin)
    write_head(pool, [tag.page], [tag])
    pool.body(tag.page)[:] = pool.body(source)
    pool.records[tag.page, pool.layout.tail_offset :] = 0
    if not (before and _shows(pool, source, expected_origin)):
        raise StampMismatch(f"page {source} changed under the copy of its tail: quarantine it")


_FAULTS = ("bad_head", "bad_tail", "bad_count", "bad_digest", "stale_slots")


def _faults(pool: PoolBuffer, page: int, origin: PageTag | None, num_tokens: int, stamp: PageStamp) -> set[str]:
    """Name the fields of a report that this page belongs in."""
    right = {
        "bad_head": _shows(pool, page, origin),
        "bad_tail": origin is not None and stamp.origin == origin,
        "bad_count": stamp.num_tokens == num_tokens,
        "bad_digest": page_digest(pool, page) == stamp.digest,
        "stale_slots": _unused_is_zero(pool, page, num_tokens),
    }
    return {name for name, is_right in right.items() if not is_right}


def _shows(pool: PoolBuffer, page: int, origin: PageTag | None) -> bool:
    return origin is not None and pool.heads[page].tobytes() == origin.pack()


def _zero_unused(pool: PoolBuffer, page: int, num_tokens: int) -> None:
    for start, end in _unused(pool.layout, num_tokens):
        pool.records[page, start:end] = 0


def _unused_is_zero(pool: PoolBuffer, page: int, num_tokens: int) -> bool:
    if num_tokens >= pool.layout.page_size:
        return True
    return not any(pool.records[page, start:end].any() for start, end in _unused(pool.layout, num_tokens))


def _unused(layout: KVLayout, num_tokens: int) -> list[tuple[int, int]]:
    """Byte ranges of every segment behind the last valid token, padding to the next segment included."""
    ends = [*layout.offsets[1:], layout.tail_offset]
    pairs = zip(layout.segments, layout.offsets, ends, strict=True)
    return [(offset + segment.token_bytes * num_tokens, end) for segment, offset, end in pairs]
