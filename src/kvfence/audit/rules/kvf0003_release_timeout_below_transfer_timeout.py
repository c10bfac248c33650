"""Pages are released by a clock that does not run longer than the transfer that may still write them.

What it checks:
    SGLang: that SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT is larger than the transfer's own time-out
    (MC_TRANSFER_TIMEOUT of Mooncake). Equal is not enough; both are 30 s where nobody sets them.

Why it matters:
    When the drain acknowledgement does not come, decode frees the pages at the deadline ("releasing anyway"). A
    transfer that is still within its own time-out then writes into pages of another request. A longer release
    time-out makes that unlikely; no time-out proves that a writer has stopped.

Evidence:
    The environment in logs, manifests and commands; the time in the "timed out after" line.

How to fix:
    Set the release time-out on decode well above the transfer's, and watch the counter of releases by time-out.

References:
    sgl-project/sglang#35049, #38961; post-mortem (2026-10-26), recommendation 3.
"""

from kvfence.audit.deployment import Engine, Role
from kvfence.audit.judge import disaggregated, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown

VARIABLE = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"


def judge(engine: Engine) -> Outcome:
    """Compare the two time-outs."""
    release, transfer = engine.facts.release_timeout_s, engine.facts.transfer_timeout_s
    if isinstance(release, Unknown):
        return undecided(f"the release time-out is not known: {release.reason}", transfer)
    if isinstance(transfer, Unknown):
        return undecided(f"the transfer time-out is not known: {transfer.reason}", release)
    if release.value > transfer.value:
        return passed(f"release after {release.value:g} s, transfer at most {transfer.value:g} s", release, transfer)
    text = f"pages are released after {release.value:g} s, a transfer may take {transfer.value:g} s"
    return failed(text, release, transfer, fixes=(_longer(2 * transfer.value),))


def _longer(seconds: float) -> Fix:
    setting = f"{VARIABLE}={seconds:g}"
    return Fix(f"Set `{setting}` on decode", setting, roles=("decode",), changes={"release_timeout_s": seconds})


RULE = Rule(
    id="KVF0003",
    slug="release-timeout-below-transfer-timeout",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang", ">=0.5.19"),),
    since="0.1.0",
    check=disaggregated(judge, Role.DECODE),
)
