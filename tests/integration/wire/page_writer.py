"""The prefill side of the shared-memory tests, as a process of its own.

Arguments: descriptors of the source and the destination pool, pages in each, and where to stop: a destination page
and an offset in its record (-1: never). Writes pages 0 and 1 of the source to 3 and 4, then exits with 0.
"""

import os
import signal
import sys

from kvfence.kv.storage import map_shared, pool_bytes
from kvfence.wire.shm import SharedMemoryTransport
from tests.pools import DECODE, LAYOUT, batch_of


def main(source_fd: int, destination_fd: int, num_pages: int, stop_page: int, stop_offset: int) -> None:
    """Write one batch, stopping this process inside it."""

    def stop(page: int, offset: int) -> None:
        if (page, offset) == (stop_page, stop_offset):
            os.kill(os.getpid(), signal.SIGSTOP)

    nbytes = pool_bytes(LAYOUT, num_pages)
    source, destination = map_shared(source_fd, nbytes), map_shared(destination_fd, nbytes)
    on_progress = None if stop_page < 0 else stop
    transport = SharedMemoryTransport(source.buffer, destination.buffer, LAYOUT, DECODE, on_progress)
    transport.write(batch_of([0, 1], [3, 4]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
