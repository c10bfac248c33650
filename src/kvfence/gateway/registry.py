"""Who may ask: API keys to tenants, and which hosts may be served without keys.

A key is kept only as its SHA-256, so that looking one up takes the same time however much of it is right. No error or
log carries a key.
"""

import base64
import hashlib
import ipaddress
import stat
from pathlib import Path

from kvfence.core.errors import SettingsError
from kvfence.core.ids import TenantId
from kvfence.gateway.quotas import Allowance
from kvfence.gateway.responses import Failure

LOCAL = TenantId("local")
"""The one tenant of a server without keys."""

OPERATOR = "@operator"
"""Stands for a tenant in a key file: this key may see the fence, and generates nothing."""

KEYS_MAX = 10_000
_FORM = (
    "a line is 'key tenant', then perhaps requests=N or tokens_per_minute=N, or it is 'key @operator'; a comment "
    "begins with #"
)
_ALLOWANCES = {"requests": "requests_max", "tokens_per_minute": "tokens_per_minute"}

UNAUTHORIZED = Failure(
    401,
    "authentication_error",
    "The API key is missing or unknown; send it as 'Authorization: Bearer KEY'.",
    "invalid_api_key",
)


NOT_AN_OPERATOR = Failure(
    401,
    "authentication_error",
    "This page needs an operator's key: a line 'key @operator' in the key file. Send it as "
    "'Authorization: Bearer KEY', or give it as the password where a browser asks.",
    "operator_key_needed",
)


class KeyRegistry:
    """Maps API keys to tenants; without any key, everyone is the tenant ``local``, and may see the fence.

    ``allowances``: of tenants for whom the file has bounds.
    """

    def __init__(
        self,
        tenants: dict[bytes, TenantId] | None = None,
        operators: frozenset[bytes] = frozenset(),
        allowances: dict[TenantId, Allowance] | None = None,
    ) -> None:
        self._tenants = tenants or {}
        self._operators = operators
        self._allowances = allowances or {}

    def allowances(self, default: Allowance) -> dict[TenantId, Allowance]:
        """Give what tenants may ask for where the file says so; what it leaves open is the default's."""
        return {
            tenant: Allowance(
                own.requests_max or default.requests_max, own.tokens_per_minute or default.tokens_per_minute
            )
            for tenant, own in self._allowances.items()
        }

    @property
    def open(self) -> bool:
        """May everyone who reaches the server ask?"""
        return not self._tenants

    @property
    def tenants(self) -> frozenset[TenantId]:
        """Everyone who can be told apart."""
        return frozenset(self._tenants.values()) or frozenset({LOCAL})

    def tenant_of(self, authorization: str) -> TenantId | Failure:
        """Give the tenant of an Authorization header."""
        if self.open:
            return LOCAL
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return UNAUTHORIZED
        return self._tenants.get(_digest(key.strip()), UNAUTHORIZED)

    def is_operator(self, authorization: str) -> bool:
        """May whoever sends this Authorization header see the fence?

        A browser cannot send a key of its own accord: it may send it as the password of Basic authentication.
        """
        if self.open:
            return True
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() == "basic":
            value = _password(value.strip())
        elif scheme.lower() != "bearer":
            return False
        return _digest(value.strip()) in self._operators


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode("utf-8").partition(":")[2]
    except ValueError:
        return ""


def load_keys(path: Path) -> KeyRegistry:
    """Read a key file.

    Raises:
        SettingsError: unreadable, empty, a line of another form, a key given twice; names lines, never keys.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(
            [f"--api-keys {path}: cannot be read ({why}); name a readable file where {_FORM}"]
        ) from None
    tenants: dict[bytes, TenantId] = {}
    allowances: dict[TenantId, Allowance] = {}
    first_line: dict[bytes, int] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        digest = _digest(words[0])
        allowance = _read_allowance(words[2:])
        if len(words) < 2 or allowance is None:
            problems.append(f"--api-keys {path}, line {number}: {len(words)} words; {_FORM}")
        elif digest in first_line:
            problems.append(f"--api-keys {path}, line {number}: the same key as line {first_line[digest]}; remove one")
        elif words[1].startswith("@") and words[1] != OPERATOR:
            problems.append(f"--api-keys {path}, line {number}: a tenant's name does not begin with @; {_FORM}")
        else:
            tenant = TenantId(words[1])
            tenants[digest], first_line[digest] = tenant, number
            if allowance != Allowance() and allowances.setdefault(tenant, allowance) != allowance:
                problems.append(f"--api-keys {path}, line {number}: another bound than its tenant has above; keep one")
    operators = frozenset(digest for digest, tenant in tenants.items() if tenant == OPERATOR)
    tenants = {digest: tenant for digest, tenant in tenants.items() if digest not in operators}
    if not tenants and not problems:
        problems.append(f"--api-keys {path}: holds no key of a tenant; {_FORM}")
    if len(tenants) > KEYS_MAX:
        problems.append(f"--api-keys {path}: {len(tenants)} keys; at most {KEYS_MAX} are kept")
    if problems:
        raise SettingsError(problems)
    return KeyRegistry(tenants, operators, allowances)


def _read_allowance(words: list[str]) -> Allowance | None:
    """Read what stands behind a tenant; None where it is wrong."""
    given: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        field = _ALLOWANCES.get(name)
        if field is None or field in given or not value.isascii() or not value.isdecimal() or len(value) > 12:
            return None
        given[field] = int(value)
    return Allowance(**given)


def describe_exposure(path: Path) -> str | None:
    """Say how to close a key file that others can read; None where they cannot."""
    mode = path.stat().st_mode
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        return f"{path} can be read by others on this machine; close it with: chmod 600 {path}"
    return None


def require_keys_or_loopback(host: str, registry: KeyRegistry) -> None:
    """Refuse to serve other machines without keys.

    Raises:
        SettingsError: the host is not loopback and there are no keys.
    """
    if registry.open and not is_loopback(host):
        raise SettingsError(
            [f"--host {host} can be reached from other machines: name a key file with --api-keys, or use 127.0.0.1"]
        )


def is_loopback(host: str) -> bool:
    """Is this address certain to be this machine alone?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
