"""An audit in one file: facts, digests of the sources, versions of the rules, verdicts; and its recomputation.

A bundle is not signed: whoever edits facts and verdicts alike makes another valid bundle. Recomputing shows verdicts
that do not follow from the facts; the digests of the sources tie the facts to files that somebody kept.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from kvfence import __version__
from kvfence.audit.catalogue import catalogue
from kvfence.audit.deployment import Stated, assemble
from kvfence.audit.runner import Finding, run
from kvfence.core.errors import EvidenceError
from kvfence.evidence.facts import SourceFacts

SCHEMA = "kvfence-bundle/1"
MEMBER_BYTES_MAX = 64 << 20
_CHUNK = 1 << 20
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
"""A bundle of the same audit is the same bytes."""


class SourceDigest(Struct, frozen=True):
    """A file that was read. sha256: of its bytes as they lie on disk."""

    name: str
    sha256: str
    bytes: int


class Inputs(Struct, frozen=True):
    """All that the verdicts follow from."""

    facts: tuple[SourceFacts, ...]
    advertised: int | None = None
    single_tenant: bool = False
    baseline: tuple[SourceFacts, ...] | None = None


class Manifest(Struct, frozen=True):
    """What the bundle holds. rules: digest of each rule's text; members: sha256 of each member."""

    schema: str
    kvfence: str
    rules: dict[str, str]
    sources: tuple[SourceDigest, ...]
    members: dict[str, str]


class Verification(Struct, frozen=True):
    """The result of a recomputation. differences: what does not follow; changed_rules: rules of another version."""

    differences: tuple[str, ...]
    changed_rules: tuple[str, ...]
    unchecked_sources: tuple[str, ...]


def digest_file(path: Path) -> SourceDigest:
    """Digest a source."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return SourceDigest(str(path), digest.hexdigest(), size)


def inputs_of(facts: Sequence[SourceFacts], stated: Stated, baseline: Sequence[SourceFacts] | None) -> Inputs:
    """Put together what the verdicts follow from."""
    before = None if baseline is None else tuple(baseline)
    return Inputs(tuple(facts), stated.advertised, stated.single_tenant, before)


def write(path: Path, inputs: Inputs, findings: Iterable[Finding], sources: Iterable[SourceDigest]) -> None:
    """Write a bundle."""
    members = {
        "inputs.json": msgspec.json.encode(inputs),
        "findings.json": msgspec.json.encode(tuple(findings)),
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    manifest = Manifest(SCHEMA, __version__, _rules(), tuple(sources), digests)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {"manifest.json": msgspec.json.encode(manifest), **members}.items():
            archive.writestr(zipfile.ZipInfo(name, _FIXED_TIME), data, zipfile.ZIP_DEFLATED)


def verify(path: Path, files: Sequence[Path] = ()) -> Verification:
    """Recompute the verdicts of a bundle; compare the digests of the sources that are given.

    Raises:
        EvidenceError: the file is not a bundle.
    """
    manifest, inputs, findings = _read(path)
    current = _rules()
    changed = sorted(name for name in {*manifest.rules, *current} if manifest.rules.get(name) != current.get(name))
    recomputed = run(assemble(inputs.facts, _stated(inputs), inputs.baseline)).findings
    differences = _differences(findings, recomputed, set(changed))
    given = {digest.name: digest for digest in map(digest_file, files)}
    differences += [
        f"{source.name}: its bytes are not those that were audited"
        for source in manifest.sources
        if (now := given.get(source.name)) is not None and now.sha256 != source.sha256
    ]
    unchecked = tuple(source.name for source in manifest.sources if source.name not in given)
    return Verification(tuple(differences), tuple(changed), unchecked)


def _stated(inputs: Inputs) -> Stated:
    return Stated(inputs.advertised, inputs.single_tenant)


def _rules() -> dict[str, str]:
    return {entry.rule.id: entry.digest for entry in catalogue()}


def _differences(said: Sequence[Finding], recomputed: Sequence[Finding], skip: set[str]) -> list[str]:
    before, after = _by_key(said, skip), _by_key(recomputed, skip)
    return [
        f"{rule} {subject}: the bundle says {before.get((rule, subject), 'nothing')}, "
        f"recomputed {after.get((rule, subject), 'nothing')}"
        for rule, subject in sorted({*before, *after})
        if before.get((rule, subject)) != after.get((rule, subject))
    ]


def _by_key(findings: Iterable[Finding], skip: set[str]) -> Mapping[tuple[str, str], str]:
    verdicts: dict[tuple[str, str], str] = {}
    for finding in findings:
        if finding.rule not in skip:
            key = (finding.rule, finding.subject)
            said = f"{finding.verdict} ({finding.severity}): {finding.message}"
            verdicts[key] = f"{verdicts[key]} / {said}" if key in verdicts else said
    return verdicts


def _read(path: Path) -> tuple[Manifest, Inputs, tuple[Finding, ...]]:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = msgspec.json.decode(_member(archive, "manifest.json"), type=Manifest)
            if manifest.schema != SCHEMA:
                raise EvidenceError(f"{path}: schema {manifest.schema!r}, not {SCHEMA!r}")
            data = {name: _member(archive, name) for name in ("inputs.json", "findings.json")}
        for name, content in data.items():
            if hashlib.sha256(content).hexdigest() != manifest.members.get(name):
                raise EvidenceError(f"{path}: {name} is not what its manifest says; the bundle was edited or damaged")
        inputs = msgspec.json.decode(data["inputs.json"], type=Inputs)
        return manifest, inputs, msgspec.json.decode(data["findings.json"], type=tuple[Finding, ...])
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, msgspec.MsgspecError, RuntimeError) as error:
        raise EvidenceError(f"{path}: not a bundle of this kvfence ({type(error).__name__})") from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        data = file.read(MEMBER_BYTES_MAX + 1)
    if len(data) > MEMBER_BYTES_MAX:
        raise EvidenceError(f"{archive.filename}: {name} is larger than any bundle's")
    return data
