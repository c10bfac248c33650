"""The transfer checksum is asked for on one role only.

What it checks:
    `--disaggregation-enable-kv-checksum` on both halves of an SGLang pair.

Why it matters:
    A digest that only one side computes is compared with nothing: requests are admitted unverified, after an error
    line about unequal metadata buffers at registration.

Evidence:
    `disaggregation_enable_kv_checksum` in the server's arguments or `/server_info` of each role.

How to fix:
    Set the flag on both roles.

References:
    sgl-project/sglang#39500, #39729; post-mortem (2026-10-26), recommendation 4.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import each_pair, failed, passed, undecided
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown


def judge(prefill: Engine, decode: Engine) -> Outcome:
    """Compare the flag of both halves."""
    ours, theirs = prefill.facts.kv_checksum_requested, decode.facts.kv_checksum_requested
    if isinstance(ours, Unknown) or isinstance(theirs, Unknown):
        return undecided("whether both roles ask for the checksum is not known", ours, theirs)
    if ours.value == theirs.value:
        return passed("both roles ask for it" if ours.value else "neither role asks for it", ours, theirs)
    where = "prefill" if ours.value else "decode"
    flag = "--disaggregation-enable-kv-checksum"
    fix = Fix(f"Start both roles with `{flag}`", flag, changes={"kv_checksum_requested": True})
    return failed(f"only {where} asks for the checksum: nothing is compared", ours, theirs, fixes=(fix,))


RULE = Rule(
    id="KVF0015",
    slug="checksum-on-one-side",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang"),),
    since="0.1.0",
    check=each_pair(judge),
)
