"""What an audit keeps: baselines and bundles, and what they tell later."""

import json
import zipfile
from pathlib import Path

import pytest

from kvfence.audit import baseline, bundle
from kvfence.audit.deployment import Stated, assemble
from kvfence.audit.runner import run
from kvfence.core.errors import EvidenceError
from kvfence.evidence.facts import SourceFacts
from tests.audit.cases import source
from tests.audit.test_incident import engine

PAIR = (engine("prefill", version="0.5.19"), engine("decode", 2_040_000, events={"transfer_failed": 3}))


def written(tmp_path: Path, sources: tuple[SourceFacts, ...] = PAIR) -> Path:
    """Write a bundle of a pair."""
    log = tmp_path / "prefill.log"
    log.write_text("max_total_num_tokens=681280\n")
    path = tmp_path / "audit.zip"
    stated = Stated(advertised=1_048_576)
    audit = run(assemble(sources, stated))
    bundle.write(path, bundle.inputs_of(sources, stated, None), audit.findings, [bundle.digest_file(log)])
    return path


def edited(path: Path, name: str, change: dict[str, str], digests: bool = True) -> None:
    """Replace texts in a member, with or without its digest in the manifest."""
    with zipfile.ZipFile(path) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    for old, new in change.items():
        assert old.encode() in members[name]
        members[name] = members[name].replace(old.encode(), new.encode())
    if digests:
        import hashlib

        manifest = json.loads(members["manifest.json"])
        manifest["members"] = {each: hashlib.sha256(members[each]).hexdigest() for each in manifest["members"]}
        members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in members.items():
            archive.writestr(each, data)


def test_a_baseline_comes_back_as_it_was(tmp_path: Path) -> None:
    """Facts, roles, provenance and events survive the file."""
    path = tmp_path / "baseline.json"
    baseline.save(path, PAIR)
    assert baseline.load(path) == PAIR


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "other/1", "sources": []}', "\x00"])
def test_another_file_is_no_baseline(tmp_path: Path, text: str) -> None:
    """A file of another kind is refused with what to do."""
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(EvidenceError, match="--save-baseline"):
        baseline.load(path)


def test_a_change_is_shown_with_both_values() -> None:
    """A fraction that changed without a new reading fails, and the difference is written out."""
    before = [source("prefill.log", role="prefill", pool_tokens=5, memory_fraction=0.85)]
    after = [source("prefill.log", role="prefill", pool_tokens=5, memory_fraction=0.9)]
    audit = run(assemble(after, baseline=before))
    (finding,) = [each for each in audit.findings if each.rule == "KVF0050"]
    assert finding.message == "changed: memory_fraction: 0.85 -> 0.9; the pool was not read again"


def test_a_bundle_verifies(tmp_path: Path) -> None:
    """Verdicts follow from the facts, and the source's bytes are those that were audited."""
    path = written(tmp_path)
    assert bundle.verify(path, [tmp_path / "prefill.log"]) == bundle.Verification((), (), ())


def test_a_bundle_of_the_same_audit_is_the_same_bytes(tmp_path: Path) -> None:
    """Nothing of the clock is in a bundle."""
    first = written(tmp_path).read_bytes()
    assert written(tmp_path).read_bytes() == first


def test_an_edited_verdict_is_found(tmp_path: Path) -> None:
    """A FAIL that was turned into a PASS does not follow from the facts."""
    path = written(tmp_path)
    edited(path, "findings.json", {'"verdict":"fail"': '"verdict":"pass"'})
    found = bundle.verify(path)
    assert any(line.startswith("KVF0001 prefill prefill.log: the bundle says pass") for line in found.differences)


def test_edited_facts_are_found(tmp_path: Path) -> None:
    """Another pool in the facts gives other verdicts than the bundle says."""
    path = written(tmp_path)
    edited(path, "inputs.json", {'"value":681280': '"value":9681280'})
    assert bundle.verify(path).differences


def test_a_damaged_member_is_found(tmp_path: Path) -> None:
    """A member that is not what the manifest says is refused."""
    path = written(tmp_path)
    edited(path, "inputs.json", {"681280": "681281"}, digests=False)
    with pytest.raises(EvidenceError, match="edited or damaged"):
        bundle.verify(path)


def test_a_changed_source_is_found(tmp_path: Path) -> None:
    """A log that is not the one that was audited differs in its digest."""
    path = written(tmp_path)
    (tmp_path / "prefill.log").write_text("max_total_num_tokens=2097152\n")
    assert "not those that were audited" in bundle.verify(path, [tmp_path / "prefill.log"]).differences[0]


def test_a_rule_of_another_version_is_not_compared(tmp_path: Path) -> None:
    """A rule that has changed since is named, and its verdict neither confirmed nor denied."""
    path = written(tmp_path)
    with zipfile.ZipFile(path) as archive:
        digest = json.loads(archive.read("manifest.json"))["rules"]["KVF0001"]
    edited(path, "manifest.json", {digest: "0" * 64}, digests=False)
    found = bundle.verify(path)
    assert (found.changed_rules, found.differences) == (("KVF0001",), ())


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06" + b"\x00" * 18, b"not a zip"])
def test_another_file_is_no_bundle(tmp_path: Path, data: bytes) -> None:
    """A file of another kind is refused."""
    path = tmp_path / "audit.zip"
    path.write_bytes(data)
    with pytest.raises(EvidenceError):
        bundle.verify(path)


def test_a_member_that_unpacks_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is read up to the bound and refused."""
    path = written(tmp_path)
    monkeypatch.setattr(bundle, "MEMBER_BYTES_MAX", 1000)
    with pytest.raises(EvidenceError, match="larger"):
        bundle.verify(path)
