"""One simulated seed, shared: it takes a second."""

import pytest

from kvfence.incident.findings import SeedFindings
from kvfence.incident.simulated import simulate


@pytest.fixture(scope="session")
def found() -> SeedFindings:
    """All runs of seed 1 on the protocol alone."""
    return simulate(1)
