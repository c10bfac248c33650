"""The transfer checksum is on and skips requests.

What it checks:
    The line "KV checksum skipped", which SGLang writes once for each pair of layouts that differ.

Why it matters:
    Where prefill and decode differ in tensor-parallel width, pipeline stage or page size, 0.5.23 admits every later
    request from that prefill unverified, and says so once.

Evidence:
    The decode log.

How to fix:
    Make tensor-parallel width, pipeline stages, page size and dtype equal on both roles.

References:
    sgl-project/sglang#39729; post-mortem (2026-10-26), recommendation 4: check that requests really are verified.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import failed, not_applicable, not_single, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known

_FIX = Fix(
    "Give both roles the same --tp-size, --pp-size, --page-size and --kv-cache-dtype, and look again",
    changes={"kv_checksum_active": True},
)


def judge(engine: Engine) -> Outcome:
    """Look at what the engine said of its own checksum."""
    asked, active = engine.facts.kv_checksum_requested, engine.facts.kv_checksum_active
    if isinstance(active, Known) and not active.value and not (isinstance(asked, Known) and not asked.value):
        return failed("requests are admitted unverified", active, asked, fixes=(_FIX,))
    if isinstance(asked, Known) and not asked.value:
        return not_applicable("the checksum is not asked for", asked)
    if isinstance(active, Known):
        return passed("requests are verified", active)
    if isinstance(asked, Known) and engine.has_kind("log"):
        return passed("no skipped request in the log that was given", asked)
    return undecided("whether requests are skipped is not known: give the decode log", asked)


RULE = Rule(
    id="KVF0017",
    slug="checksum-skipped",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=not_single(judge),
)
