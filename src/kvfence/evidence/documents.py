"""Documents that are read whole: JSON answers, manifests, router configuration; anything else is a text of lines.

What a document is, is told from its content.
"""

import json
import re
from collections.abc import Iterator

from kvfence.evidence.answers import read_answer
from kvfence.evidence.facts import SourceFacts
from kvfence.evidence.sources import DOCUMENT_BYTES_MAX, HEAD_BYTES, Block

_YAML = re.compile(rb"^(?:apiVersion|kind|static_resources|services):", re.MULTILINE)
_NGINX = re.compile(rb"^\s*(?:http|upstream\s+\S+|server|events|stream|location\s+[^{]{1,200})\s*\{", re.MULTILINE)
_NGINX_WORDS = re.compile(rb"\b(?:proxy_pass|upstream|listen|worker_connections|grpc_pass)\b")


def read_document(name: str, first: Block, rest: Iterator[Block]) -> "list[SourceFacts] | Iterator[Block]":
    """The facts of a document; or, where the source is not one, its blocks unchanged."""
    head = first.data[:HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    reader = _reader(head)
    if reader is None:
        return _chain(first, rest)
    data, blocks = _whole(first, rest)
    if data is not None and (facts := reader(name, data)) is not None:
        return facts
    return _chain_all(blocks, rest)


def _reader(head: bytes) -> "Reader | None":
    if head[:1] in (b"{", b"["):
        return _read_json if _looks_like_json(head) else None
    if _YAML.search(head):
        return _read_yaml
    if _NGINX.search(head) and _NGINX_WORDS.search(head):
        return _read_nginx
    return None


def _looks_like_json(head: bytes) -> bool:
    return head[:1] == b"{" or re.match(rb"\[\s*[\{\[\"\]]", head) is not None


def _read_json(name: str, data: bytes) -> list[SourceFacts] | None:
    try:
        document = json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    return read_answer(name, document)


def _read_yaml(name: str, data: bytes) -> list[SourceFacts] | None:
    from kvfence.evidence.manifests import read_yaml

    return read_yaml(name, data.decode("utf-8-sig", "replace"))


def _read_nginx(name: str, data: bytes) -> list[SourceFacts] | None:
    from kvfence.evidence.routers import read_nginx

    return read_nginx(name, data.decode("utf-8-sig", "replace"))


def _whole(first: Block, rest: Iterator[Block]) -> tuple[bytes | None, list[Block]]:
    blocks, size = [first], len(first.data)
    for block in rest:
        blocks.append(block)
        size += len(block.data)
        if size > DOCUMENT_BYTES_MAX:
            return None, blocks
    return b"".join(block.data for block in blocks), blocks


def _chain(first: Block, rest: Iterator[Block]) -> Iterator[Block]:
    yield first
    yield from rest


def _chain_all(blocks: list[Block], rest: Iterator[Block]) -> Iterator[Block]:
    yield from blocks
    yield from rest


from collections.abc import Callable  # noqa: E402

Reader = Callable[[str, bytes], "list[SourceFacts] | None"]
