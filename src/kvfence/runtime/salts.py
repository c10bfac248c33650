"""Whose pages a request may share, as a word that names nobody."""

import hashlib
import secrets

import msgspec

from kvfence.core.request import Request

SALT_BYTES = 16


class Salter:
    """Derives salts under a secret of this gateway's life, so that a trace does not tell whose they are."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def salt(self, request: Request) -> str:
        """Give the salt of the request's tenant, narrowed by its own ``cache_salt``."""
        whose = msgspec.json.encode((request.tenant, request.cache_salt))
        return hashlib.blake2b(whose, digest_size=SALT_BYTES, key=self._secret).hexdigest()
