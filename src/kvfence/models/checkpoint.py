"""Find a checkpoint and read what a server must know of it before any weight is loaded. No torch at import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct

from kvfence.core.errors import ModelError
from kvfence.models.bundled import Progress, embedded_model
from kvfence.models.families import check_family

WORDS_FILES = ["*.json", "*.jinja"]
HUB_FILES = [*WORDS_FILES, "*.safetensors"]


class CheckpointFacts(Struct, frozen=True):
    """What config.json and generation_config.json say.

    Units:
        context_tokens: the longest sequence the model was made for.
    """

    family: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: frozenset[int]


def resolve_checkpoint(path_or_id: str, progress: Progress, *, weights: bool = True) -> Path:
    """Give the folder of a checkpoint: the embedded model for "", a local folder, or a hub id (downloaded).

    ``weights``: without them a download has the tokenizer and the configuration alone.

    Raises:
        ModelError: it is none of the three, or cannot be fetched.
    """
    if not path_or_id:
        return embedded_model(progress)
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        return path
    if path.exists() or path_or_id.startswith((".", "/", "~")) or path_or_id.count("/") > 1:
        raise ModelError(f"--model {path_or_id}: no such folder. Give a checkpoint folder or a hub id like org/name.")
    return _download(path_or_id, HUB_FILES if weights else WORDS_FILES)


def read_facts(path: Path) -> CheckpointFacts:
    """Read a checkpoint's config and refuse families that do not run in pages.

    Raises:
        ModelError: a file is missing or unreadable, or the family is refused.
    """
    config = read_json(path / "config.json")
    check_family(config)
    generation = read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
    context = config.get("max_position_embeddings") or config.get("n_positions") or config.get("n_ctx")
    vocab_size = config.get("vocab_size")
    if not _is_count(context) or not _is_count(vocab_size):
        raise ModelError(f"{path / 'config.json'}: max_position_embeddings and vocab_size must be numbers above 0.")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(each, int) for each in ids):
        raise ModelError(f"{path}: eos_token_id must be a token id or a list of them. Fetch the checkpoint again.")
    return CheckpointFacts(str(config["model_type"]), context, vocab_size, frozenset(map(int, ids)))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a checkpoint.

    Raises:
        ModelError: it is missing or is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: missing. Is {path.parent} a Hugging Face checkpoint folder?") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: unreadable ({type(error).__name__}). Fetch the checkpoint again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object. Fetch the checkpoint again.")
    return value


def _download(hub_id: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"--model {hub_id}: not a folder here, and the hub did not give it ({type(error).__name__}). "
            "Check the id, the network, and HF_TOKEN or HF_HUB_OFFLINE if set."
        ) from error
