"""The secret that both roles share, and what it proves: that a message came from one who has it, unchanged.

HMAC-SHA256 of the standard library. It protects messages, not memory: who can write a worker's pages can forge what
is digested from them.
"""

import hashlib
import hmac

KEY_CHARS_MIN = 32
MAC_BYTES = 32
_ID_OF = b"kvfence guard key id"


class Key:
    """A secret that never leaves this object: not by ``repr``, not by an error."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @staticmethod
    def none() -> "Key":
        """Give the key of those who do without one; everybody has it."""
        return Key(b"")

    @property
    def is_secret(self) -> bool:
        """Is there a key at all?"""
        return bool(self._secret)

    @property
    def id(self) -> str:
        """Name the key without giving it away: 8 hex digits, equal where the keys are."""
        return hmac.new(self._secret, _ID_OF, hashlib.sha256).hexdigest()[:8] if self._secret else "insecure"

    def mac(self, body: bytes) -> bytes:
        """Give the code that only holders of the key can make."""
        return hmac.new(self._secret, body, hashlib.sha256).digest()

    def holds(self, body: bytes, mac: bytes) -> bool:
        """Was this code made with the key for this body? In constant time."""
        return hmac.compare_digest(self.mac(body), mac)

    def __repr__(self) -> str:
        return f"Key({self.id})"
