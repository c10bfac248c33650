"""What has changed between two audits of the same deployment."""

from collections.abc import Iterable, Iterator

from kvfence.audit.runner import Audit
from kvfence.core.verdict import Verdict
from kvfence.evidence.visible import cell


def changes(before: Audit | None, now: Audit) -> Iterator[str]:
    """Give a line for each verdict that changed; of a first audit, for each that is FAIL or UNKNOWN."""
    was = _verdicts(before) if before is not None else {}
    for key, (verdict, severity, message) in _verdicts(now).items():
        old = was.get(key)
        if before is None and verdict not in {Verdict.FAIL, Verdict.UNKNOWN}:
            continue
        if old is None or (old[0], old[2]) != (verdict, message):
            rule, subject = key
            arrow = f"{old[0]} -> " if old is not None else ""
            yield f"{arrow}{verdict} {severity} {rule} {cell(subject)}: {cell(message)}"
    for rule, subject in was.keys() - _verdicts(now).keys():
        yield f"gone {rule} {cell(subject)}"


def worst_code(codes: Iterable[int]) -> int:
    """Give the exit code of several audits: 1 wins over 3, 3 over 0."""
    given = set(codes)
    return next((code for code in (1, 3) if code in given), 0)


def _verdicts(audit: Audit) -> dict[tuple[str, str], tuple[Verdict, str, str]]:
    return {
        (each.rule, each.subject): (each.verdict, str(each.severity), each.message)
        for each in audit.findings
        if each.verdict is not Verdict.NOT_APPLICABLE
    }
