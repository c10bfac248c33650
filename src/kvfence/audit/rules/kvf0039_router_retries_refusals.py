"""The router sends a refused request again.

What it checks:
    That the router in front of a pair does not retry.

Why it matters:
    A prompt that does not fit is refused for good. Routers that turn prefill's 400 into a 500 and retry send it to
    every worker in turn; each try starts a hand-off that cannot end.

Evidence:
    Router arguments such as `--disable-retries`, `proxy_next_upstream`, Envoy's retry policy.

How to fix:
    Switch retries off for the pair, or retry only where nothing was sent.

References:
    vllm-project/vllm-ascend#8893, #12168; llm-d router #1206.
"""

from kvfence.audit.judge import failed, passed, undecided
from kvfence.audit.routers import each_router
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import SourceFacts, Unknown


def judge(router: SourceFacts) -> Outcome:
    """Look at the retries."""
    retries = router.retries
    if isinstance(retries, Unknown):
        return undecided(f"whether it retries is not known: {retries.reason}")
    if not retries.value:
        return passed("it does not retry", retries)
    setting = "proxy_next_upstream off;" if router.kind == "nginx" else "--disable-retries"
    fix = Fix(f"Set `{setting}`", setting, changes={"retries": False})
    return failed("it retries: a refusal is sent to one worker after another", retries, fixes=(fix,))


RULE = Rule(
    id="KVF0039",
    slug="router-retries-refusals",
    severity=Severity.LOW,
    since="0.1.0",
    check=each_router(judge, "retries"),
)
