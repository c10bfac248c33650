"""Each rule has fixtures that pass, fail and cannot be told, and the fixes it proposes mend what fails."""

from pathlib import Path

import pytest

from kvfence.audit.catalogue import Entry, catalogue, find
from kvfence.audit.deployment import Stated, assemble
from kvfence.audit.rule import apply_fix
from kvfence.audit.runner import Audit, Finding, run
from kvfence.core.verdict import Verdict
from tests.audit.cases import RULES, Case, load

FIXTURES = sorted(RULES.glob("*/*/*.json"))
NO_RELEASE_MENDS_IT = {"KVF0053"}
EXPECTED = {
    "good": {Verdict.PASS, Verdict.NOT_APPLICABLE},
    "bad": {Verdict.FAIL},
    "unknown": {Verdict.UNKNOWN},
}


def judged(case: Case, entry: Entry) -> Audit:
    """Ask one rule."""
    return run(case.deployment(), [entry])


def named(path: Path) -> str:
    """Name a fixture in a test's id."""
    return str(path.relative_to(RULES).with_suffix(""))


@pytest.mark.parametrize("path", FIXTURES, ids=named)
def test_a_fixture_gives_its_verdict(path: Path) -> None:
    """A good, bad or unknown deployment gets that verdict, and no other, from its rule."""
    entry = find(path.parts[-3])
    audit = judged(load(path), entry)
    assert audit.verdict_of(entry.rule.id) in EXPECTED[path.parts[-2]], audit.findings


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.rule.id)
def test_every_rule_has_fixtures_of_each_kind(entry: Entry) -> None:
    """A rule without a fixture that fails, one that passes and one that cannot be told is not finished."""
    for kind in EXPECTED:
        assert list((RULES / entry.rule.id / kind).glob("*.json")), kind
    if entry.rule.id not in NO_RELEASE_MENDS_IT:
        good = [judged(load(path), entry) for path in (RULES / entry.rule.id / "good").glob("*.json")]
        assert Verdict.PASS in {audit.verdict_of(entry.rule.id) for audit in good}


def findings_of(path: Path) -> list[Finding]:
    """The findings of a bad fixture that FAIL."""
    audit = judged(load(path), find(path.parts[-3]))
    return [finding for finding in audit.findings if finding.verdict is Verdict.FAIL]


@pytest.mark.parametrize("path", [path for path in FIXTURES if path.parts[-2] == "bad"], ids=named)
def test_what_fails_says_what_to_do(path: Path) -> None:
    """A FAIL quotes its evidence and proposes at least one thing to do."""
    for finding in findings_of(path):
        assert finding.fixes
        assert all(fix.text for fix in finding.fixes)
        assert finding.evidence or finding.rule == "KVF0050"
        assert finding.subject


@pytest.mark.parametrize("path", [path for path in FIXTURES if path.parts[-2] == "bad"], ids=named)
def test_a_fix_makes_the_rule_pass(path: Path) -> None:
    """Each fix whose effect on the facts is stated, applied to them, ends the FAIL of the finding that proposed it."""
    case, entry = load(path), find(path.parts[-3])
    for finding in findings_of(path):
        for fix in finding.fixes:
            if fix.changes:
                stated = Stated(None if "advertised_context" in fix.changes else case.stated.advertised)
                deployment = assemble(apply_fix(case.sources, fix), stated, case.baseline)
                after = [each for each in run(deployment, [entry]).findings if each.subject == finding.subject]
                assert after
                assert {each.verdict for each in after} <= EXPECTED["good"], (fix, after)
