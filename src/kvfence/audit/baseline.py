"""The facts of an audit, kept, so that the next one sees what has changed (rule KVF0050)."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from kvfence.core.errors import EvidenceError
from kvfence.evidence.facts import SourceFacts

SCHEMA = "kvfence-baseline/1"
BYTES_MAX = 64 << 20


class Baseline(Struct, frozen=True):
    """The sources' facts as they were, roles included."""

    schema: str
    sources: tuple[SourceFacts, ...]


def save(path: Path, sources: Sequence[SourceFacts]) -> None:
    """Write a baseline."""
    text = msgspec.json.format(msgspec.json.encode(Baseline(SCHEMA, tuple(sources))), indent=1)
    path.write_bytes(text + b"\n")


def load(path: Path) -> tuple[SourceFacts, ...]:
    """Read a baseline.

    Raises:
        EvidenceError: the file is not one of this schema.
    """
    if path.stat().st_size > BYTES_MAX:
        raise EvidenceError(f"{path}: larger than any baseline; save it anew with --save-baseline")
    try:
        read = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except msgspec.MsgspecError as error:
        raise EvidenceError(f"{path}: not a baseline ({error}); save it anew with --save-baseline") from error
    if read.schema != SCHEMA:
        raise EvidenceError(f"{path}: schema {read.schema!r}, not {SCHEMA!r}; save it anew with --save-baseline")
    return read.sources
