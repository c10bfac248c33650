"""Defaults that a version documents: used only for a known version that is no fork, where the text says nothing else.

An environment that nobody showed may still differ: each such value is marked ``default_of``.
"""

import re

from packaging.version import InvalidVersion, Version

from kvfence.evidence.facts import Origin
from kvfence.evidence.readings import Found, Notebook, Value

# engine, fact, first version, version before which it ends, value, roles it matters to
_TABLE: tuple[tuple[str, str, str, str, Value, tuple[str, ...]], ...] = (
    ("sglang", "deferred_release", "0.5.19", "0.5.21", False, ("prefill", "decode")),
    ("sglang", "deferred_release", "0.5.21", "0.6", True, ("prefill", "decode")),
    ("sglang", "release_timeout_s", "0.5.19", "0.6", 30.0, ("prefill", "decode")),
    ("sglang", "waiting_timeout_s", "0.5.9", "0.6", 300.0, ("prefill", "decode")),
    ("sglang", "batch_indices_max", "0.5.20", "0.5.24", 0, ("prefill", "decode")),
    ("vllm", "failure_policy", "0.14.1", "0.18", "recompute", ("prefill", "decode")),
    ("vllm", "failure_policy", "0.18.1", "0.34", "fail", ("prefill", "decode")),
)
_BUILDS = re.compile(
    r"^(?:cu\d{2,3}|cpu|rocm[\d.]*|xpu|neuron\w*|tpu|g[0-9a-f]{6,40}(?:\.\w+)*|[0-9a-f]{7,40}|d\d{8})(?:\.(?:cu\d{2,3}|cpu|rocm[\d.]*|d\d{8}|g[0-9a-f]+))*$"
)


def is_fork(text: str) -> bool | None:
    """Whether a version's local label is a vendor's own; None where the text is not a version."""
    try:
        version = Version(text.removeprefix("v"))
    except InvalidVersion:
        return None
    return version.local is not None and not _BUILDS.match(version.local)


def add_defaults(book: Notebook, engine: str) -> None:
    """Say whether the version is a fork's; if not, fill in what it documents."""
    chosen = book.choose("version")
    if chosen is None:
        return
    fork = is_fork(str(chosen.value))
    if fork is not None:
        book.derive(Found("is_fork", fork), chosen, "local version label")
    if fork is not False:
        return
    version = Version(str(chosen.value).removeprefix("v"))
    role = book.choose("role")
    for name, fact, first, end, value, roles in _TABLE:
        if name == engine and fact not in book and Version(first) <= version < Version(end):
            if role is not None and role.value in roles and not version.is_prerelease:
                origin = Origin(
                    book.source, chosen.origin.line, chosen.origin.quote, chosen.origin.at, "documented default"
                )
                book.add(Found(fact, value, 1, f"{engine} {version}"), origin)
