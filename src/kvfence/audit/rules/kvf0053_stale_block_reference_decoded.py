"""Decode reads blocks by number alone, after their lease has ended too.

What it checks:
    vLLM with a NIXL connector: no release up to 0.32 carries a generation or a digest with a block reference; reported
    for 0.24 to 0.29. Later releases: UNKNOWN.

Why it matters:
    When the lease of prefill's blocks ends before decode reads them, the blocks are somebody else's. Decode reads
    them, HTTP 200; the previous prompt's answer was seen. No counter of failures moves, decode is never told.

Evidence:
    Connector and version.

How to fix:
    No release closes it. A lease longer than the longest queue (`kv_lease_duration` in `kv_connector_extra_config`)
    makes it rare; alert on reads after expiry; a connector that checks generation and digest stops it.

References:
    vllm-project/vllm#52234, #21570, #32208; aws-samples/aws-do-eks#84.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.detectors import uses_nixl
from kvfence.audit.judge import disaggregated, failed, not_applicable, undecided
from kvfence.audit.rule import Alert, EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown
from kvfence.evidence.versions import within

_SETTING = '"kv_connector_extra_config": {"kv_lease_duration": 300}'


def judge(engine: Engine) -> Outcome:
    """Judge by connector and release."""
    connector, release = engine.facts.connector, engine.release
    nixl = uses_nixl(engine)
    if isinstance(nixl, Unknown):
        return undecided(nixl.reason)
    if not nixl.value:
        return not_applicable("the connector is not NIXL's", connector)
    if isinstance(release, Unknown):
        return undecided(release.reason, connector)
    if not within(release.value, ">=0.24,<0.33"):
        return undecided(f"whether vLLM {release.value} checks what it reads is not known", connector, release)
    fix = Fix(f"Make an expired lease rare: `{_SETTING}` on both roles; put a checking connector in front", _SETTING)
    return failed("decode cannot tell an expired block from its own", connector, release, fixes=(fix,))


RULE = Rule(
    id="KVF0053",
    slug="stale-block-reference-decoded",
    severity=Severity.HIGH,
    engines=(EngineRange("vllm"),),
    since="0.1.0",
    check=disaggregated(judge),
    alerts=(
        Alert(
            "KvBlocksReadAfterExpiry",
            "increase(vllm:nixl_num_notifications_after_expiry_total[15m]) > 0",
            "A decode worker read blocks whose lease had ended: each one may be a leaked response",
            for_="0m",
        ),
    ),
)
