"""JUnit XML of an audit: FAIL is a failure, UNKNOWN an error (it is not a pass), the rest is skipped or passes."""

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from kvfence.audit.report.document import Document, in_order
from kvfence.audit.report.text import evidence
from kvfence.audit.runner import Finding
from kvfence.core.verdict import Verdict
from kvfence.evidence.visible import plain


def to_junit(document: Document) -> str:
    """Give the audit as JUnit XML."""
    suite = TestSuite("kvfence audit")
    for finding in in_order(document.findings):
        case = TestCase(f"{finding.rule} {finding.slug}", plain(finding.subject) or "deployment")
        if (result := _result(finding)) is not None:
            case.result = [result]
        suite.add_testcase(case)
    xml = JUnitXml("kvfence audit")
    xml.add_testsuite(suite)
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode()


def _result(finding: Finding) -> Error | Failure | Skipped | None:
    message = plain(finding.message)
    if finding.ignored:
        return Skipped(f"accepted: {plain(finding.ignored)}")
    if finding.verdict is Verdict.NOT_APPLICABLE:
        return Skipped(message)
    if finding.verdict is Verdict.PASS:
        return None
    made = Failure(message, str(finding.severity)) if finding.verdict is Verdict.FAIL else Error(message, "unknown")
    lines = [evidence(origin) for origin in finding.evidence] + [f"fix: {plain(fix.text)}" for fix in finding.fixes]
    made.text = "\n".join(lines)
    return made
