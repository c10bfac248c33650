"""Prefill and decode cut the KV cache into pages of different size.

What it checks:
    The page or block size of both halves of a pair.

Why it matters:
    Page numbers cross the border between the two. With different page sizes the same number names other tokens, or the
    transfer counts bytes of one page as another's; SGLang's checksum then skips every request.

Evidence:
    `page_size` of the server's arguments, `/server_info` or the metrics; `--block-size`.

How to fix:
    The same page size on both roles.

References:
    sgl-project/sglang#39729 (layouts that differ are admitted unverified), #22716.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.parity import same
from kvfence.audit.rule import Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import IntFact


def _read(engine: Engine) -> IntFact:
    return engine.facts.page_size


def _setting(engine: Engine, value: int) -> str:
    flags = {"sglang": "--page-size {}", "vllm": "--block-size {}"}
    return flags[engine.engine].format(value) if engine.engine in flags else ""


RULE = Rule(
    id="KVF0023",
    slug="page-size-differs",
    severity=Severity.HIGH,
    since="0.1.0",
    check=same("page size", "page_size", _read, _setting),
)
