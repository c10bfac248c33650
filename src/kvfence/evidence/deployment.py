"""``kvfence.toml``: a deployment's sources with their roles, so that one name audits all of it.

::

    tenants = 2                      # more than one: rules on shared caches apply

    [[source]]
    path = "logs/prefill*.log"       # or url = "http://...", or prometheus = "http://..."
    role = "prefill"                 # prefill, decode, single; left out: as the text says
    token_variable = "PREFILL_TOKEN" # the environment variable that holds a bearer token
"""

import re
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from kvfence.core.errors import EvidenceError
from kvfence.evidence.fetch import is_url

ROLES = ("prefill", "decode", "single")
FILE_BYTES_MAX = 1 << 20
_IS_DEPLOYMENT = re.compile(rb"^\s*\[\[\s*source\s*\]\]", re.MULTILINE)


class Spec(Struct, frozen=True):
    """One source as named: a file, glob, directory, ``-`` or URL; the role the caller gives it, if any."""

    source: str
    role: str | None = None
    token_variable: str | None = None


class SourceTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[source]]`` of the file."""

    path: str | None = None
    url: str | None = None
    prometheus: str | None = None
    role: str | None = None
    token_variable: str | None = None


class Deployment(Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment file. ``tenants``: how many customers share it; ``advertised``: the context clients are told."""

    source: tuple[SourceTable, ...]
    name: str = ""
    tenants: int | None = None
    advertised: int | None = None


def is_deployment(path: str) -> bool:
    """Whether a file is a deployment file, by its content."""
    try:
        with open(path, "rb") as file:
            return _IS_DEPLOYMENT.search(file.read(1 << 16)) is not None
    except OSError:
        return False


def load_deployment(path: str) -> Deployment:
    """Read a deployment file.

    Raises:
        EvidenceError: it is no valid TOML, or has a key or role that does not exist.
    """
    data = Path(path).read_bytes()[:FILE_BYTES_MAX]
    try:
        deployment = msgspec.convert(tomllib.loads(data.decode()), Deployment)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise EvidenceError(f"{path}: {error}") from error
    for table in deployment.source:
        if table.role is not None and table.role not in ROLES:
            raise EvidenceError(f"{path}: role {table.role!r}; write one of {', '.join(ROLES)}")
        if sum(each is not None for each in (table.path, table.url, table.prometheus)) != 1:
            raise EvidenceError(f"{path}: a [[source]] names exactly one of path, url, prometheus")
    return deployment


def specs_of(deployment: Deployment, directory: str = ".") -> list[Spec]:
    """The sources of a deployment; paths are relative to the file's directory."""
    found: list[Spec] = []
    for table in deployment.source:
        source = table.url or (f"prometheus+{table.prometheus}" if table.prometheus else str(table.path))
        if not is_url(source) and not Path(source).is_absolute() and source != "-":
            source = str(Path(directory) / source)
        found.append(Spec(source, table.role, table.token_variable))
    return found
