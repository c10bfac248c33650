"""A log shows pages given back without proof that the writer had stopped.

What it checks:
    "Deferred KV release for room ... timed out ... releasing anyway", and its counter by outcome.

Why it matters:
    At that moment a transfer may still write. What it writes lands in pages of whoever holds them next.

Evidence:
    The decode log; `sglang:decode_deferred_kv_release_total` with outcome timeout.

How to fix:
    Find why prefill does not acknowledge (mixed versions, a dead peer); raise the release time-out (KVF0003).

References:
    sgl-project/sglang#38961, #35049.
"""

from kvfence.audit.rule import Alert, EngineRange, Rule
from kvfence.audit.seen import seen
from kvfence.core.verdict import Severity

_NAMES = ("deferred_release_timeout",)
_MEANING = "pages went back to the pool while a remote write may still land in them"
_FIX = "Set the release time-out above the transfer time-out (KVF0003); run one release, 0.5.22 or later"

RULE = Rule(
    id="KVF0042",
    slug="seen-release-without-drain",
    severity=Severity.CRITICAL,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=seen(_MEANING, *_NAMES, fix=_FIX),
    alerts=(
        Alert(
            "KvReleasedWithoutDrain",
            'increase(sglang:decode_deferred_kv_release_total{outcome="timeout"}[15m]) > 0',
            "KV pages went back to the pool while a remote write may still land in them",
            for_="0m",
        ),
    ),
)
