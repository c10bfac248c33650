"""The guard inside an installed release, without a server: its hooks, SGLang's allocator, Mooncake's sessions."""

import json
import subprocess
from typing import Any

import pytest
from conftest import RELEASE
from pair import HERE, Site, environment

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def found(site: Site) -> dict[str, Any]:
    """What ``in_process.py`` says; importing the engine is most of its time."""
    command = [str(site.python), str(HERE / "in_process.py")]
    ended = subprocess.run(
        command, env=environment(site, RELEASE), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


def test_every_hook_is_put_in(found: dict[str, Any]) -> None:
    """SGLang's own registry wraps each of the guard's points in this release."""
    assert found["hooks"]["unwrapped"] == []


def test_honest_grants_are_left_alone_and_a_page_of_another_is_found(found: dict[str, Any]) -> None:
    """SGLang's allocator and table of slots, sixty passes; then one over a page that went back to the pool."""
    assert found["allocator"]["honest"] == [True, True, True]
    assert found["allocator"]["after"] == [True, False, True]


def test_pages_of_several_tokens_are_seen_as_they_are_granted(found: dict[str, Any]) -> None:
    """SGLang's paged allocator: a last page that is gone on with is not granted anew, and all come back."""
    paged = found["paged"]
    assert paged["whole"] == paged["was"]
    if "needs" in paged:
        pytest.skip(f"growing pages needs a GPU in this release: {paged['needs']}")
    assert paged["extended"] == paged["extended_was"]
    assert paged["grown"] == paged["grown_was"]
    assert paged["left"] == []
    assert paged["banned"] == 0


def test_a_new_session_ends_every_write_to_the_old_one(found: dict[str, Any]) -> None:
    """Mooncake's engine, replaced in place: the old session takes nothing more, the new one does, waiters are moved."""
    fence = found["fence"]
    assert fence["before"] == [0, 7 * 4096]
    assert fence["fenced"]
    assert fence["late"][0] != 0
    assert fence["late"][1] == 0
    assert fence["after"] == [0, 7 * 4096]
    assert fence["told"] == ["told"]
    assert fence["renamed"]
