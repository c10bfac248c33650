"""Findings become an exit code; what is accepted has a reason and an end."""

import datetime
from pathlib import Path

import pytest

from kvfence.audit.catalogue import find
from kvfence.audit.deployment import assemble
from kvfence.audit.ignores import load_ignores
from kvfence.audit.runner import Audit, Finding, Ignore, exit_code, run, with_ignores
from kvfence.core.errors import EvidenceError
from kvfence.core.verdict import Severity, Verdict, worst
from tests.audit.cases import source

TODAY = datetime.date(2026, 11, 29)


def finding(verdict: Verdict, severity: Severity = Severity.HIGH, subject: str = "decode") -> Finding:
    """Make a finding of one rule."""
    return Finding("KVF0014", "transfer-batch-unbounded", "", severity, verdict, subject, "text")


def test_verdicts_are_joined_from_the_worst() -> None:
    """FAIL wins over UNKNOWN, UNKNOWN over PASS, PASS over NOT_APPLICABLE; nothing at all is not a pass."""
    order = [Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.NOT_APPLICABLE]
    for number, verdict in enumerate(order):
        assert worst(order[number:]) is verdict
    assert worst([]) is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([finding(Verdict.FAIL)], 1),
        ([finding(Verdict.FAIL), finding(Verdict.UNKNOWN)], 1),
        ([finding(Verdict.FAIL, Severity.MEDIUM)], 0),
        ([finding(Verdict.FAIL, Severity.MEDIUM), finding(Verdict.UNKNOWN, Severity.INFO)], 3),
        ([finding(Verdict.UNKNOWN)], 3),
        ([finding(Verdict.PASS), finding(Verdict.NOT_APPLICABLE)], 0),
    ],
)
def test_the_exit_code_follows_fail_then_unknown(findings: list[Finding], code: int) -> None:
    """1 where a rule at or above high FAILs, else 3 where one is UNKNOWN, else 0."""
    assert exit_code(Audit(tuple(findings))) == code


def test_fail_on_moves_the_threshold() -> None:
    """A medium FAIL counts once medium is asked for."""
    assert exit_code(Audit((finding(Verdict.FAIL, Severity.MEDIUM),)), Severity.MEDIUM) == 1


def test_an_accepted_finding_does_not_count_until_its_end() -> None:
    """The day after its end it counts again, and a note says so."""
    audit = Audit((finding(Verdict.FAIL),))
    ignore = Ignore("KVF0014", "bounded from the next release on", TODAY)
    accepted, notes = with_ignores(audit, [ignore], TODAY)
    assert (exit_code(accepted), notes) == (0, [])
    again, notes = with_ignores(audit, [ignore], TODAY + datetime.timedelta(days=1))
    assert exit_code(again) == 1
    assert "expired" in notes[0]


def test_an_acceptance_of_one_subject_leaves_the_others() -> None:
    """An acceptance can name its subject; one that matches nothing is noted."""
    audit = Audit((finding(Verdict.FAIL, subject="decode a"), finding(Verdict.FAIL, subject="decode b")))
    accepted, notes = with_ignores(audit, [Ignore("KVF0014", "why", TODAY, "decode a")], TODAY)
    assert [each.subject for each in accepted.counted] == ["decode b"]
    assert with_ignores(audit, [Ignore("KVF0001", "why", TODAY)], TODAY)[1] == ["ignore of KVF0001 matches no finding"]
    assert notes == []


def test_acceptances_are_read_from_a_file(tmp_path: Path) -> None:
    """A file without a reason, an end, or with an unknown key is refused with an example."""
    path = tmp_path / "ignores.toml"
    path.write_text('[[ignore]]\nrule = "KVF0014"\nreason = "why"\nuntil = 2027-01-31\n')
    assert load_ignores(path) == [Ignore("KVF0014", "why", datetime.date(2027, 1, 31))]
    for text in ('[[ignore]]\nrule = "KVF0014"\nuntil = 2027-01-31\n', "[ignore", "[[ignore]]\nrule = 1\n", "x = 1\n"):
        path.write_text(text)
        with pytest.raises(EvidenceError):
            load_ignores(path)
    path.write_text('[[ignore]]\nrule = "KVF0014"\nreason = " "\nuntil = 2027-01-31\n')
    with pytest.raises(EvidenceError, match="no reason"):
        load_ignores(path)


def test_an_engine_that_is_not_known_leaves_its_rules_unknown() -> None:
    """A rule about SGLang says UNKNOWN of an engine without a name, and nothing of a vLLM."""
    entry = find("rejected-request-handed-off")
    unknown = run(assemble([source("a.log", role="prefill")]), [entry])
    assert unknown.verdict_of("KVF0008") is Verdict.UNKNOWN
    other = run(assemble([source("a.log", role="prefill", engine="vllm", version="0.32.0")]), [entry])
    assert other.verdict_of("KVF0008") is Verdict.NOT_APPLICABLE


def test_nothing_recognised_is_not_a_pass() -> None:
    """Evidence of which nothing is understood, or a router alone, gives UNKNOWN of every rule about engines."""
    for sources in ([], [source("nginx.conf", "router", engine="nginx", aborts_on_disconnect=False)]):
        audit = run(assemble(sources))
        assert audit.verdict_of("KVF0001") is Verdict.UNKNOWN
        assert exit_code(audit) == 3


def test_a_rule_that_is_not_there_is_said() -> None:
    """An unknown id names the command that lists them."""
    with pytest.raises(EvidenceError, match="audit rules"):
        find("KVF9999")
