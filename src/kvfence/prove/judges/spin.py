"""SPIN as a judge: run it on ``spec/HandOff.pml`` and count the states that it stores.

Needs ``spin`` and a C compiler; ``make prove-judges`` says how they are installed.
"""

import re
import subprocess
import tempfile
from pathlib import Path

from kvfence.core.errors import EvidenceError
from kvfence.prove.judges.core import Config
from kvfence.prove.judges.tlc import GUARDS

_STORED = re.compile(r"^\s*(\d+) states, stored", re.MULTILINE)


def defines(config: Config) -> list[str]:
    """Give a configuration as definitions for the preprocessor."""
    numbers = {
        "N": len(config.sizes),
        **{f"SIZE{number}": size for number, size in enumerate(config.sizes)},
        "D": config.decode_pages,
        "P": config.prefill_pages,
        "BATCH": config.batch,
        "CANCELS": config.cancels,
        "STALLS": config.stalls,
        "DUPS": config.duplicates,
        "CORRUPTS": config.corrupts,
        "DEATHS": config.deaths,
    }
    guards = {name.upper(): int(guard not in config.absent) for name, guard in GUARDS.items()}
    return [f"-D{name}={value}" for name, value in {**numbers, **guards}.items()]


def states_of(config: Config, spec: Path) -> int:
    """Give the number of states that SPIN finds, without the one before everything has its first value."""
    with tempfile.TemporaryDirectory() as folder:
        options = defines(config)
        _run(["spin", *options, "-a", str(spec.resolve())], folder)
        _run(["cc", "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DVECTORSZ=2048", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", "-m1000000", "-E"], folder)
    stored = _STORED.search(said)
    if stored is None or "errors: 0" not in said:
        raise EvidenceError(f"SPIN said no count:\n{said[-2000:]}")
    return int(stored[1]) - 1


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise EvidenceError(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
