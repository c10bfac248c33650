"""Real SGLang pairs, one at a time: a pair takes minutes to start and 5 GiB, so that cases share one.

The guarded pair is the last that is started, and stays until the end.
"""

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from pair import HERE, OFF, Pair, Site, Sizes, running

from kvfence.models.bundled import embedded_model

RELEASE = os.environ.get("SGLANG_RELEASE", "0.5.19")

TRACES = "traces"
TAMPER = "tamper"
"""In the folder of a pair's logs."""

SHORT_WAITS = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "60"}
"""The engine's own time-outs are five minutes; cases that wait them out should not take that long."""


def pytest_configure() -> None:
    """End the engines where the run is ended, also in the background, where shells let SIGINT be ignored."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)


@pytest.fixture(scope="session")
def site() -> Site:
    """Where ``make`` has put the engine."""
    python, folder = os.environ.get("SGLANG_PYTHON"), os.environ.get("SGLANG_FOLDER")
    if not python or not folder:
        pytest.fail("run these by make test-sglang or make test-probe-sglang: they make the engine's environment")
    return Site(Path(python), Path(folder), embedded_model(lambda _text: None))


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Pair]:
    """A pair with the guard on both roles, enforcing."""
    logs = tmp_path_factory.mktemp("guarded")
    key, trace = secrets.token_hex(32), str(logs / TRACES)
    guard = {"KVFENCE_GUARD": "enforce", "KVFENCE_GUARD_KEY": key, "KVFENCE_GUARD_TRACE": trace, **SHORT_WAITS}
    with running(replace(site, guard=guard), RELEASE, Sizes(), logs) as pair:
        yield pair


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Pair]:
    """A pair with the guard on both roles, observing; what prefill promises can be tampered with."""
    logs = tmp_path_factory.mktemp("observing")
    key, trace = secrets.token_hex(32), str(logs / TRACES)
    (logs / TAMPER).write_text("", encoding="ascii")
    guard = {"KVFENCE_GUARD": "observe", "KVFENCE_GUARD_KEY": key, "KVFENCE_GUARD_TRACE": trace, **SHORT_WAITS}
    guard["TAMPER"] = str(logs / TAMPER)
    with running(replace(site, guard=guard, more=(HERE / "tamper",)), RELEASE, Sizes(), logs) as pair:
        yield pair


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Pair]:
    """A pair as shipped."""
    with running(replace(site, guard=OFF), RELEASE, Sizes(), tmp_path_factory.mktemp("stock")) as pair:
        yield pair
