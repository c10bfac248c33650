"""The same faulty writes with the answering guard away: each does the harm that the guard is there for."""

from pathlib import Path

from kvfence.protocol.guards import Rules
from kvfence.protocol.messages import EndReason
from tests.integration.runtime import courses
from tests.integration.runtime.pairs import Scene, running_pair


async def test_without_quarantine_late_bytes_reach_an_answer(tmp_path: Path) -> None:
    """Guard quarantine-on-revoke: the torn page goes to a running sequence, whose tokens turn wrong, unnoticed."""
    async with running_pair(Scene(Rules.without("quarantine-on-revoke")), tmp_path) as pair:
        course = await courses.late_write(pair)
        assert courses.QUARANTINED not in course.states
        assert await course.victim.finish() is EndReason.LENGTH
        assert not course.victim.right


async def test_without_the_comparison_at_read_foreign_bytes_reach_an_answer(tmp_path: Path) -> None:
    """Guard stamp-at-read: the sequence goes on over another tenant's page to an ordinary end."""
    async with running_pair(Scene(Rules.without("stamp-at-read")), tmp_path) as pair:
        course = await courses.misdirected_write(pair)
        assert await course.victim.finish() is EndReason.LENGTH
        assert not course.victim.right


async def test_without_the_digest_a_corrupted_page_is_adopted(tmp_path: Path) -> None:
    """Guard digest-matches: a changed byte under the right stamp changes the answer."""
    async with running_pair(Scene(Rules.without("digest-matches")), tmp_path) as pair:
        course = await courses.corrupted_write(pair, 50)
        assert await course.faulty.finish() is EndReason.LENGTH
        assert not course.faulty.right
        assert course.victim.right


async def test_without_quarantine_on_mismatch_pages_are_free_under_a_stray_writer(tmp_path: Path) -> None:
    """Guard quarantine-on-mismatch: the page that was just hit is free for the next one."""
    async with running_pair(Scene(Rules.without("quarantine-on-mismatch")), tmp_path) as pair:
        course = await courses.misdirected_write(pair)
        assert await course.victim.finish() is EndReason.STAMP_MISMATCH
        assert course.states == {"free": pair.scene.decode_pages}


async def test_without_the_drain_pages_are_free_while_bytes_land(tmp_path: Path) -> None:
    """Guard drain-or-fence: an abort is answered at once, and the hanging write lands in a page that is free."""
    async with running_pair(Scene(Rules.without("drain-or-fence")), tmp_path) as pair:
        course = await courses.hanging_write(pair)
        assert course.states == {"free": pair.scene.decode_pages}
