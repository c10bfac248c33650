"""Keyed pseudonyms for accounts and request ids: HMAC-SHA256 under the operator's key, cut to 64 and 96 bits.

Without the key nobody can find an account by trying names; with it the operator finds each one again. The same key
gives the same pseudonyms in every report.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.scope.report.document import Names

DEFAULT_KEY = "kvfence-scope.key"
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


def read_or_make_key(path: Path) -> tuple[bytes, bool]:
    """Read a key, or make one that only its owner can read; and tell whether it was made.

    Raises:
        SettingsError: what is there is no key.
        OSError: it can neither be read nor made.
    """
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_key(path), False
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")
    return read_key(path), True


def read_key(path: Path) -> bytes:
    """Read an operator's key.

    Raises:
        SettingsError: it is too short to be one, or too long.
        OSError: it cannot be read.
    """
    key = path.read_bytes().strip()
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        text = f"{path} holds {len(key)} bytes: a key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX}"
        raise SettingsError([f"{text}; name a file that is not there, and one is made"])
    return key


def _keyed(key: bytes, kind: str, name: str) -> str:
    return hmac.new(key, f"{kind}\0{name}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
