"""Numbers of the run: collected by module, shown at the end, written as JSON."""

from typing import Any

import pytest

from tests.faults.numbers import Numbers, machine

MEASURED: dict[str, Numbers] = {}


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Numbers:
    """The numbers of this module's subject."""
    subject = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    return MEASURED.setdefault(subject, Numbers(subject))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show and write what was measured, in runs of the faults alone."""
    if "faults" not in terminalreporter.config.option.markexpr.replace("not faults", ""):
        return
    for subject in MEASURED.values():
        if not subject.table():
            continue
        subject.write()
        terminalreporter.section(f"{subject.subject} (build/faults/{subject.subject}.json)")
        for name, value in subject.table():
            terminalreporter.write_line(f"  {name:40} {value}")
    if MEASURED:
        facts = machine()
        terminalreporter.write_line(f"  {facts}")
