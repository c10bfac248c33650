"""A manifest names the tag that each page was written under, whoever wrote it."""

from kvfence.core.ids import Incarnation
from kvfence.core.manifest import Manifest
from kvfence.core.tags import PageTag

ORIGIN = Incarnation("1" * 32)


def test_shared_pages_keep_the_tags_of_the_lots_that_wrote_them() -> None:
    """Runs of earlier serials come first, then the hand-off's own; behind the last page nothing is promised."""
    manifest = Manifest(20, ORIGIN, 9, (5, 6, 2, 3, 7), "layout", shared=((4, 2), (6, 1)))
    tags = [PageTag(ORIGIN, serial, page) for serial, page in ((4, 5), (4, 6), (6, 2), (9, 3), (9, 7))]
    assert [manifest.origin_tag(index) for index in range(6)] == [*tags, None]
