"""Keyed pseudonyms for accounts and request ids: HMAC-SHA256 under the operator's key, cut to 64 and 96 bits.

Without the key nobody can find an account by trying names; with it the operator finds each one again. The same key
gives the same pseudonyms in every report.
"""

import hashlib
import hmac
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.scope.report.document import Names

KEY_BYTES_MIN, KEY_BYTES_MAX = 16, 4096


class Pseudonyms(Struct, frozen=True):
    """Writes accounts and ids; without a key as they are."""

    key: bytes | None

    def account(self, name: str | None) -> str | None:
        """Write an account."""
        return name if name is None or self.key is None else f"account-{_keyed(self.key, 'account', name)[:16]}"

    def request(self, name: str) -> str:
        """Write a request id."""
        return name if self.key is None else f"request-{_keyed(self.key, 'request', name)[:24]}"

    @property
    def names(self) -> Names:
        """Say how names are written, for the document."""
        if self.key is None:
            return Names(pseudonyms=False)
        return Names(pseudonyms=True, key=_keyed(self.key, "fingerprint", "")[:8])


def read_key(path: Path) -> bytes:
    """Read an operator's key.

    Raises:
        SettingsError: it is too short to be one, or too long.
        OSError: it cannot be read.
    """
    key = path.read_bytes().strip()
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        text = f"{path} holds {len(key)} bytes: a key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX}; make one with"
        raise SettingsError([f"{text} `openssl rand -hex 32 > {path}`"])
    return key


def _keyed(key: bytes, kind: str, name: str) -> str:
    return hmac.new(key, f"{kind}\0{name}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
