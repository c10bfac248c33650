"""What replay says of the traces that a pair's guards have written so far."""

import json
import subprocess
import sys
from pathlib import Path


def rulings(folder: Path) -> list[tuple[str, str]]:
    """Give each trace's role and verdict."""
    command = [sys.executable, "-m", "kvfence", "prove", "replay", "--so-far", "--json", str(folder)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return [(trace["role"], trace["verdict"]) for trace in json.loads(ended.stdout)["traces"]]
