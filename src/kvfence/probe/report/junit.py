"""JUnit XML of a probe: a case for the verdict and one for each detector; what could not be told is an error."""

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from kvfence.probe.detectors import ALL
from kvfence.probe.finding import Severity
from kvfence.probe.report.document import Document
from kvfence.probe.report.lines import summary
from kvfence.probe.verdict import Told, Verdict


def to_junit(document: Document) -> str:
    """Give the report as JUnit XML."""
    suite = TestSuite("kvfence probe")
    suite.add_testcase(_verdict(document))
    for detector in ALL:
        case = TestCase(detector.name, "detector")
        case.result = [_result(told) for told in document.findings if told.detector == detector.name]
        if document.verdict is Verdict.UNKNOWN and not case.result:
            case.result = [Skipped("the run could not tell")]
        suite.add_testcase(case)
    xml = JUnitXml("kvfence probe")
    xml.add_testsuite(suite)
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode()


def _verdict(document: Document) -> TestCase:
    case = TestCase("verdict", "probe")
    message = "; ".join(document.why)
    if document.verdict is not Verdict.CLEAN:
        kind = Error if document.verdict is Verdict.UNKNOWN else Failure
        made = kind(message, str(document.verdict))
        made.text = "\n".join(summary(document))
        case.result = [made]
    return case


def _result(told: Told) -> Failure | Skipped:
    if told.severity is Severity.NOTE:
        return Skipped(told.message)
    made = Failure(told.message, str(told.severity))
    made.text = "\n".join(
        f"request {each.request} of {each.tenant}, {each.phase}: {each.seen}" + (f", of {each.of}" if each.of else "")
        for each in told.evidence
    )
    return made
