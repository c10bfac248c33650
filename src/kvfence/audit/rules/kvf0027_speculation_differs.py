"""Speculative decoding is on in one role only.

What it checks:
    The speculation setting of both halves of a pair.

Why it matters:
    A draft model's cache stands beside the main one. Where only decode has it, offsets of the V cache differed between
    the roles and answers were wrong, without an error.

Evidence:
    `speculative_algorithm` in the server's arguments, `speculative_config` of vLLM.

How to fix:
    The same speculation setting on both roles.

References:
    sgl-project/sglang#17212.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.parity import same
from kvfence.audit.rule import Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known, TextFact


def _read(engine: Engine) -> TextFact:
    """Give the algorithm; every way to say that there is none is one."""
    fact = engine.facts.speculation
    if isinstance(fact, Known) and fact.value.lower() in {"", "none", "null", "off"}:
        return Known("none", fact.origin, fact.default_of)
    return fact


def _setting(engine: Engine, value: str) -> str:
    if value == "none":
        return "no --speculative-* flags"
    return f"--speculative-algorithm {value}" if engine.engine == "sglang" else ""


RULE = Rule(
    id="KVF0027",
    slug="speculation-differs",
    severity=Severity.HIGH,
    since="0.1.0",
    check=same("speculation", "speculation", _read, _setting),
)
