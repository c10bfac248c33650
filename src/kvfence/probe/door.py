"""How the endpoint is reached: address, model, route, keys; and what it will not take in a body.

Keys stand here alone. They go into one header of requests to the base URL's own origin, and into no text.
"""

import re
import ssl
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.probe.exchange import Ask

SECRET_CHARS_MIN = 8
"""A shorter key or header value is in many a word: it is taken out of errors and not out of answers."""
PIECE_CHARS = 12
"""So many characters of a key or header value in a row are a piece of it: some servers repeat a beginning."""

_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SHAPE = "--base-url: write http://HOST:PORT or https://HOST/v1"


class Api(StrEnum):
    """Which route is asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """Give the route below the base URL."""
        return "/chat/completions" if self is Api.CHAT else "/completions"


class Door(Struct, frozen=True, kw_only=True):
    """Where and as whom. ``keys`` by tenant, empty where none is sent; ``headers`` go with every request.

    ``key_names``: by tenant, the environment variable that its key came from; ``header_names``: by header, likewise.
    ``ca``: the file that ``verify`` was read from.
    """

    base_url: str
    model: str
    keys: dict[str, str]
    key_names: dict[str, str] = {}
    api: Api | None = None
    headers: dict[str, str] = {}
    header_names: dict[str, str] = {}
    verify: ssl.SSLContext | bool = True
    ca: str = ""

    def __repr__(self) -> str:
        return f"Door({self.base_url!r}, {len(self.keys)} tenants)"

    def masked(self, text: str, chars_min: int = 1) -> str:
        """Take every key and header value out of a text, longest first, then pieces of them."""
        return without_secrets(text, [*self.keys.values(), *self.headers.values()], chars_min)

    def masked_answer(self, text: str) -> str:
        """Take out of an answer what is long enough to stand there by no chance: a marker must stay as it came."""
        return self.masked(text, SECRET_CHARS_MIN)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Give the tenants, in order."""
        return tuple(self.keys)

    def headers_of(self, tenant: str) -> dict[str, str]:
        """Give the headers of one tenant's request."""
        key = self.keys[tenant]
        return {**self.headers, **({"authorization": f"Bearer {key}"} if key else {})}


def without_secrets(text: str, secrets: Iterable[str], chars_min: int = 1) -> str:
    """Take secrets of so many characters or more out of a text, and pieces of any."""
    longest = sorted({*secrets} - {""}, key=len, reverse=True)
    for secret in longest:
        text = text.replace(secret, "(key)") if len(secret) >= chars_min else text
    for secret in longest:
        text = _without_pieces(text, secret)
    return text


def _without_pieces(text: str, secret: str) -> str:
    for begin in range(len(secret) - PIECE_CHARS + 1):
        end = begin + PIECE_CHARS
        if secret[begin:end] in text:
            while end < len(secret) and secret[begin : end + 1] in text:
                end += 1
            text = text.replace(secret[begin:end], "(key)")
    return text


class Dialect:
    """What this server takes, learned once; what it refused by name is left out from then on."""

    OPTIONAL = ("stream_options", "logprobs", "seed", "temperature")

    def __init__(self) -> None:
        self.dropped: set[str] = set()
        self.tokens_field = "max_tokens"

    def learn(self, message: str, ask: Ask) -> bool:
        """Take a refusal's words; True where asking again without the named field may help."""
        said = message.lower()
        if self.tokens_field == "max_tokens" and "max_completion_tokens" in said:
            self.tokens_field = "max_completion_tokens"
            return True
        sent = {name for name in self.OPTIONAL if self._is_sent(name, ask)}
        named = {name for name in sent if name in said or name.replace("_", " ") in said}
        self.dropped |= named
        return bool(named)

    def strip(self) -> bool:
        """Leave out everything that is optional: for a refusal that names nothing; False where that was done."""
        before = len(self.dropped)
        self.dropped |= set(self.OPTIONAL)
        return len(self.dropped) > before

    def _is_sent(self, name: str, ask: Ask) -> bool:
        wanted = {"stream_options": ask.stream, "logprobs": ask.logprobs, "seed": ask.seed is not None}
        return name not in self.dropped and wanted.get(name, True)

    def body(self, ask: Ask, api: Api, model: str) -> dict[str, object]:
        """Write the body of one request."""
        body: dict[str, object] = {"model": model, self.tokens_field: ask.max_tokens, "stream": ask.stream}
        if api is Api.CHAT:
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        extra = {
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stream_options": {"include_usage": True},
            "logprobs": True if api is Api.CHAT else 0,
        }
        return body | {name: extra[name] for name in self.OPTIONAL if self._is_sent(name, ask)}


def base_url_of(text: str) -> str:
    """Give the base URL without a slash at its end, ``/v1`` added where no version stands.

    Raises:
        SettingsError: no http(s) URL that a request can be sent to, or more in it than an address.
    """
    if not text.isprintable() or " " in text:
        raise SettingsError([f"{_SHAPE}, without white space or characters that cannot be seen"])
    try:
        parts = urlsplit(text)
        port = parts.port
        httpx.URL(text)
        (parts.hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL) as error:
        raise SettingsError([f"{_SHAPE}: a port is 1 to 65535, an IPv6 address stands in brackets"]) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingsError([_SHAPE])
    if parts.username is not None or parts.password is not None or "?" in text or "#" in text:
        raise SettingsError(["--base-url: no credentials, query or fragment in it; name keys with --api-key-env"])
    path = parts.path.rstrip("/")
    last = path.rpartition("/")[2]
    versioned = last[:1] == "v" and last[1:2].isdigit()
    return f"{parts.scheme}://{parts.netloc}{path if versioned else path + '/v1'}"


def is_field_name(text: str) -> bool:
    """Tell whether a header may have this name."""
    return _FIELD.fullmatch(text) is not None


def is_field_value(text: str) -> bool:
    """Tell whether a header can carry this value as it is."""
    return text.isascii() and text.isprintable() and text == text.strip()


def verify_of(ca: Path | None, insecure: bool) -> ssl.SSLContext | bool:
    """Give how certificates are checked.

    Raises:
        SettingsError: the file of authorities cannot be read.
    """
    if insecure:
        return False
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError([f"--ca {ca}: no file of PEM certificates"]) from error
