"""What prefill promises of one hand-off, sealed into the parameters that travel through proxies and clients.

In ``enforce`` everything that vLLM would put there openly travels inside the seal: a decode without the guard finds
nothing that it could read, and computes the prompt itself.
"""

import base64
import binascii
import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from kvfence.core.ids import AttemptId
from kvfence.guard.key import MAC_BYTES, Key
from kvfence.guard.messages import Promise

FIELD = "kvfence"
"""The one field of ``kv_transfer_params`` that is the guard's."""

VERSION = 1
BYTES_MAX = 1 << 24
DIGEST_BYTES = 16

Groups = tuple[tuple[int, ...], ...]
"""Block numbers, one tuple for each KV cache group, in the order of the prompt."""


class Manifest(Struct, frozen=True):
    """One hand-off.

    ``prompt``: a code over the prompt and all that its KV depends on, by the key, so that nobody can guess at it.
    ``computed_tokens``: how many of the prompt have KV at prefill. ``tags``: the serials of ``blocks``,
    which prefill compares between digest and promise; to decode they are names.
    ``digests``: one string a rank, 16 bytes a block, in the order of ``blocks``. ``params``: vLLM's own.
    """

    version: int
    promise: Promise
    prompt: bytes
    computed_tokens: int
    blocks: Groups
    tags: Groups
    digests: tuple[bytes, ...]
    params: dict[str, Any]

    @property
    def attempt(self) -> AttemptId:
        """Give the attempt that these pages were computed for."""
        return self.promise.attempt


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Manifest)


def seal(key: Key, manifest: Manifest) -> str:
    """Give the code and the body as text that survives JSON."""
    body = _ENCODER.encode(manifest)
    return base64.b64encode(key.mac(body) + body).decode("ascii")


def unseal(key: Key, text: object) -> Manifest | None:
    """Give the manifest; None where it is not by a holder of the key, or none."""
    if not isinstance(text, str) or len(text) > BYTES_MAX:
        return None
    try:
        whole = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    mac, body = whole[:MAC_BYTES], whole[MAC_BYTES:]
    if not key.holds(body, mac):
        return None
    try:
        manifest = _DECODER.decode(body)
    except msgspec.MsgspecError:
        return None
    return manifest if manifest.version == VERSION else None


def prompt_code(key: Key, request: Any) -> bytes | None:
    """Give the code of all that a request's KV depends on: tokens, salt, adapter, images and their places.

    An adapter stands by its name: its number is a counter of the API server that loaded it.
    None for a prompt of embeddings, in whole or in part, which has no tokens to compare.
    """
    if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
        return None
    parts: list[Any] = [list(request.prompt_token_ids), getattr(request, "cache_salt", None)]
    adapter = getattr(request, "lora_request", None)
    parts.append(None if adapter is None else adapter.lora_name)
    for feature in getattr(request, "mm_features", None) or ():
        place = feature.mm_position
        parts.append([feature.identifier, place.offset, place.length])
    body = msgspec.msgpack.encode(parts)
    return hashlib.sha256(key.mac(body)).digest()
