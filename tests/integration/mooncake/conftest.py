"""These tests need Mooncake; those with network namespaces need root. Without them what they show is unknown."""

import importlib.util
import os

import pytest


@pytest.fixture(autouse=True)
def mooncake_is_there() -> None:
    """Skip where it is not."""
    if importlib.util.find_spec("mooncake") is None:
        pytest.skip("UNKNOWN: Mooncake is not installed: make test-mooncake")


@pytest.fixture
def as_root() -> None:
    """Skip where network namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("UNKNOWN: network namespaces need root")
