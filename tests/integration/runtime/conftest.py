"""Pairs shared by the tests of one module."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.integration.runtime.pairs import Pair, Scene, running_pair


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """A guarded pair in the module's ``SCENE``, or in the usual one."""
    scene = getattr(request.module, "SCENE", Scene())
    async with running_pair(scene, tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_fault_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that failed half-way, nothing is held, hangs or is armed for the next one."""
    yield
    if "pair" in request.fixturenames:
        request.getfixturevalue("pair").faults.let_go()
