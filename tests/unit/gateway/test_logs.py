"""The log of a server whose disk is full."""

import errno
import io

from kvfence.gateway.logs import open_log


class FullDisk(io.StringIO):
    """A file on a disk without room."""

    def write(self, text: str) -> int:
        """Refuse, as the kernel does."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_on_a_full_disk_loses_lines_and_raises_nothing() -> None:
    """A line that cannot be written costs neither an answer nor the watch over the workers."""
    log = open_log(file=FullDisk())
    for _ in range(3):
        log.info("request", status=200)
