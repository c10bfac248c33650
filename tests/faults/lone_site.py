"""A whole server of its own, to be killed and stopped: gateway, supervisor, two pairs with the arithmetic model, HTTP.

Argument: an empty folder. It says one line of JSON: its address, its workers' process ids, its folder of sockets.
"""

import asyncio
import json
import sys
from pathlib import Path

from tests.faults.site import http_server
from tests.integration.runtime.pairs import Scene, running_pair


async def main(folder: Path) -> None:
    """Serve until killed."""
    scene = Scene(num_prefill=2, num_decode=2, decode_pages=40, heartbeat_timeout_s=5.0, trace=False)
    async with running_pair(scene, folder) as pair, http_server(pair) as url:
        workers = {f"{role}-{number}": pair.pid(role, number) for role, number in pair.slots}
        said = {"url": url, "workers": workers, "control_dir": str(pair.supervisor.control_dir)}
        print(json.dumps(said), flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
