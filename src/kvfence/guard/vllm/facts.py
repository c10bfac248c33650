"""What a role is, read from vLLM's configuration; what the guard does not cover is refused here, by name."""

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kvfence.core.errors import SettingsError
from kvfence.guard import settings
from kvfence.guard.digest import BY_DEVICE, digest_on
from kvfence.guard.points import found
from kvfence.guard.settings import PREFIX, GuardSettings
from kvfence.guard.vllm.points import POINTS, TRIED, WHOLE_RECEIVES

ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
OPTIONS = {
    "kvfence_mode": PREFIX,
    "kvfence_key_file": f"{PREFIX}_KEY_FILE",
    "kvfence_insecure": f"{PREFIX}_INSECURE",
    "kvfence_trace": f"{PREFIX}_TRACE",
}
"""What may stand in ``kv_connector_extra_config`` instead of in the environment; the secret itself may not."""


class Facts(Struct, frozen=True):
    """What a role knows of itself.

    Units: tokens. ``block_tokens``: of a block, by KV cache group. ``digest``: what its blocks are compared by, part of
    ``layout``. ``whole_receives``: can this release fail a receive
    as a whole? ``fails``: is a request whose hand-off is refused to fail, or to be computed here?
    """

    layout: str
    block_tokens: tuple[int, ...]
    pool_tokens: int
    context_tokens: int
    name: str = "vllm"
    ranks: int = 1
    digest: str = BY_DEVICE["cpu"]
    role: str = "decode"
    whole_receives: bool = True
    fails: bool = True


def settings_of(config: Any, environment: Mapping[str, str] | None = None) -> GuardSettings:
    """Read the guard's settings: options of the connector first, then the environment.

    Raises:
        SettingsError: as ``settings.load``, or the secret stands in the options, which vLLM writes to its log.
    """
    extra = config.kv_transfer_config.kv_connector_extra_config or {}
    foreign = sorted(name for name in extra if name.startswith("kvfence") and name not in OPTIONS)
    if foreign:
        known = ", ".join(OPTIONS)
        raise SettingsError([f"{name}: the guard's options are {known}; a key stands in a file" for name in foreign])
    given = {OPTIONS[name]: str(value) for name, value in extra.items() if name in OPTIONS}
    return settings.load({**(os.environ if environment is None else environment), **given})


def facts_of(config: Any, caches: Any, version: str) -> Facts:
    """Read what a role is.

    Raises:
        SettingsError: the release or its configuration is one that the guard does not cover; all reasons at once.
    """
    groups = caches.kv_cache_groups
    whole = found(WHOLE_RECEIVES) is not None
    problems = [*_missing(version), *_not_covered(config, caches, whole=whole)]
    if problems:
        raise SettingsError(problems)
    blocks = tuple(int(group.kv_cache_spec.block_size) for group in groups)
    ranks = int(config.parallel_config.tensor_parallel_size)
    digest = digest_on(config.device_config.device_type)
    parts = [
        f"{len(group.layer_names)} x {type(group.kv_cache_spec).__name__} of {group.kv_cache_spec.page_size_bytes} "
        f"bytes a block of {group.kv_cache_spec.block_size}"
        for group in groups
    ]
    return Facts(
        layout=f"{'; '.join(parts)}; {ranks} ranks, {digest}",
        block_tokens=blocks,
        pool_tokens=int(caches.num_blocks) * min(blocks),
        context_tokens=int(config.model_config.max_model_len),
        name=f"vllm {release(version)}",
        ranks=ranks,
        digest=digest,
        role=ROLES.get(config.kv_transfer_config.kv_role, "both"),
        whole_receives=whole,
        fails=config.kv_transfer_config.kv_load_failure_policy != "recompute",
    )


def release(version: str) -> str:
    """Give a version without what its builder added."""
    return version.partition("+")[0]


def _missing(version: str) -> list[str]:
    absent = [point for point in POINTS if found(point) is None]
    tried = "" if release(version) in TRIED else ", and nobody has tried it"
    return [f"vLLM {version} has no {point.names[0]}{tried}: the guard does not know it" for point in absent]


def _not_covered(config: Any, caches: Any, *, whole: bool) -> list[str]:
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    problems = [
        f"{name} {value} is not covered: 1 alone"
        for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")
        if (value := getattr(parallel, name, 1)) > 1
    ]
    if transfer.get_from_extra_config("bidirectional_kv_xfer", False):
        problems.append("bidirectional_kv_xfer is not covered: prefill would read what a client names")
    if getattr(config, "speculative_config", None) is not None:
        problems.append("speculative_config is not covered: a draft model writes KV after the pass that is digested")
    device = config.device_config.device_type
    if device not in BY_DEVICE:
        problems.append(f"no digest of blocks on {device}: the guard runs on {' and '.join(BY_DEVICE)} alone")
    if device != "cpu" and getattr(transfer, "enable_permute_local_kv", False):
        problems.append(
            f"enable_permute_local_kv is not covered on {device}: blocks are compared as they lie in memory"
        )
    if len(caches.kv_cache_groups) > 1 and not whole:
        problems.append("a model with several KV cache groups has no safe failure path in this release: 0.31.0 has")
    groups = caches.kv_cache_groups
    if len(caches.transfer_groups) != len(groups):
        problems.append("a KV cache group of this model does not travel: the guard covers models of which all do")
    return problems
