"""What holds for every fake pair."""

import pytest


@pytest.fixture(autouse=True)
def _dies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes need no time to be found dead."""
    monkeypatch.setattr("kvfence.probe.handoff.run.DYING_S", 0.0)
