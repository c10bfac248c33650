"""A log shows that pages were freed twice.

What it checks:
    "memory leak detected" with more tokens available than there are; "invalid free".

Why it matters:
    A page that is in the free list twice is given to two requests: each writes over the other.

Evidence:
    The scheduler's idle check in the log.

How to fix:
    Restart the engine, upgrade, and report it with the line.

References:
    sgl-project/sglang#6888, #11970; InternLM/lmdeploy#4967.
"""

from kvfence.audit.rule import Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = (
    "memory_leak_double_free",
    "invalid_free",
)
_MEANING = "pages are in the free list twice, so that two requests may own one page"
_FIX = "Restart the engine now and upgrade it; two requests may own one page until then"

RULE = Rule(
    id="KVF0044",
    slug="seen-double-free",
    severity=Severity.CRITICAL,
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
)
