"""Real vLLM pairs, one at a time: a pair takes two minutes to start and 7.7 GB, so that cases share one."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from pair import Pair, Site, Sizes, running

from kvfence.models.bundled import embedded_model

TRACES = "traces"
"""In the folder of a pair's logs."""

ROLES = ("prefill", "decode")

RELEASE = os.environ.get("VLLM_RELEASE", "0.32.0")


@pytest.fixture(scope="session")
def site() -> Site:
    """Where ``make`` has put the engine."""
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        pytest.fail("run these by make test-vllm: it makes the engine's environment")
    return Site(Path(python), embedded_model(lambda _: None))


@pytest.fixture(scope="session")
def key() -> str:
    """The secret of a guarded pair, for tests that forge what only its holders can say."""
    return secrets.token_hex(32)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Pair]:
    """A pair as shipped."""
    with running(dict.fromkeys(ROLES, site), Sizes(), tmp_path_factory.mktemp("stock")) as both:
        yield both.pair()


def fenced(site: Site, mode: str, key: str, logs: Path) -> Site:
    """Give a site whose workers are guarded."""
    guard = {"KVFENCE_GUARD": mode, "KVFENCE_GUARD_KEY": key, "KVFENCE_GUARD_TRACE": str(logs / TRACES)}
    return replace(site, guard=guard)


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory, site: Site, key: str) -> Iterator[Pair]:
    """A pair with the guard on both roles, observing."""
    logs = tmp_path_factory.mktemp("observing")
    with running(dict.fromkeys(ROLES, fenced(site, "observe", key, logs)), Sizes(), logs) as both:
        yield both.pair()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, site: Site, key: str) -> Iterator[Pair]:
    """A pair with the guard on both roles, enforcing."""
    logs = tmp_path_factory.mktemp("guarded")
    with running(dict.fromkeys(ROLES, fenced(site, "enforce", key, logs)), Sizes(), logs) as both:
        yield both.pair()
