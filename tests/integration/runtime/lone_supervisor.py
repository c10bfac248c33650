"""A supervisor as a process of its own, to be killed: starts a pair, says its workers' process ids and its
folder of sockets, serves for ever.

Argument: an empty folder.
"""

import asyncio
import sys
from pathlib import Path

from tests.integration.runtime.pairs import Scene, running_pair


async def main(folder: Path) -> None:
    """Serve until killed."""
    async with running_pair(Scene(), folder) as pair:
        print(pair.pid("prefill"), pair.pid("decode"), pair.supervisor.control_dir, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
