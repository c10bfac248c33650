"""Two workers of a pair."""

import pytest

from tests.integration.engines.fakes import Script


@pytest.fixture
def prefill() -> Script:
    """A prefill worker."""
    return Script("prefill")


@pytest.fixture
def decode() -> Script:
    """A decode worker."""
    return Script("decode")
