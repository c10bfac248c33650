"""What replay says of the traces that a pair's guards have written so far."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def rulings(folder: Path) -> list[tuple[str, str]]:
    """Give each trace's role and verdict."""
    return [(trace["role"], trace["verdict"]) for trace in replayed(folder)]


def replayed(folder: Path) -> list[dict[str, Any]]:
    """Give all that is said of each trace."""
    found: list[dict[str, Any]] = answered(folder)["traces"]
    return found


def answered(folder: Path) -> dict[str, Any]:
    """Give replay's whole answer."""
    command = [sys.executable, "-m", "kvfence", "prove", "replay", "--so-far", "--json", str(folder)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    document: dict[str, Any] = json.loads(ended.stdout)
    return document
