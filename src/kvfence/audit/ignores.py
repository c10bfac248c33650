"""Findings that a person has accepted: read from a TOML file, each with a reason and an end."""

import datetime
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from kvfence.audit.runner import Ignore
from kvfence.core.errors import EvidenceError

EXAMPLE = '[[ignore]]\nrule = "KVF0014"\nreason = "..."\nuntil = 2027-01-31'


class IgnoreFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file: a list of acceptances."""

    ignore: list[Ignore] = []


def load_ignores(path: Path) -> list[Ignore]:
    """Read acceptances.

    Raises:
        EvidenceError: the file is wrong, or one of them has no reason.
    """
    try:
        read = msgspec.convert(tomllib.loads(path.read_text("utf-8")), IgnoreFile, builtin_types=(datetime.date,))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise EvidenceError(f"{path}: {error}. It is written:\n{EXAMPLE}") from error
    for ignore in read.ignore:
        if not ignore.reason.strip():
            raise EvidenceError(f"{path}: the ignore of {ignore.rule} has no reason")
    return read.ignore
