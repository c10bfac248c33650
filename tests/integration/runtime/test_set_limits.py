"""Limits other than the usual ones, through a running pair."""

from pathlib import Path

from kvfence.core.limits import Limits
from kvfence.protocol.commands import Post
from kvfence.protocol.messages import EndReason
from tests.integration.runtime.pairs import Scene, running_pair


async def test_batches_larger_than_usual_are_written(tmp_path: Path) -> None:
    """``limits.batch_pages_max`` holds for the transport as for the node: a whole prompt goes in one batch."""
    limits = Limits(batch_pages_max=100, chunk_tokens_max=1600)
    scene = Scene(context=1600, prefill_pages=100, decode_pages=101, limits=limits)
    async with running_pair(scene, tmp_path) as pair:
        stream = pair.stream(range(1500), 3)
        assert await stream.finish() is EndReason.LENGTH
        assert stream.right
        await pair.next_beat("prefill")
        posts = [c for step in pair.steps("prefill") for c in step.commands if isinstance(c, Post)]
        assert [len(post.source) for post in posts] == [94]
