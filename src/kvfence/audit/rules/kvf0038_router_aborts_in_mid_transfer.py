"""The router gives a request up when its client goes, also before the first token.

What it checks:
    That a router or load balancer in front of a pair does not abort on a client's disconnect.

Why it matters:
    Before the first token the pair may be in mid-transfer. An abort then crosses the nodes and frees pages on one of
    them while the other one writes.

Evidence:
    Router arguments and configuration (nginx `proxy_ignore_client_abort`, Envoy, gateway settings), its log.

How to fix:
    Let the upstream request run until the first token whatever the client does.

References:
    Post-mortem (2026-10-26), recommendation 5; ai-dynamo/dynamo#7489; vllm-project/vllm#50425; llm-d/llm-d#1138.
"""

from kvfence.audit.judge import failed, passed, undecided
from kvfence.audit.routers import each_router
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import SourceFacts, Unknown


def judge(router: SourceFacts) -> Outcome:
    """Look at what happens when the client goes."""
    aborts = router.aborts_on_disconnect
    if isinstance(aborts, Unknown):
        return undecided(f"whether a disconnect aborts upstream is not known: {aborts.reason}")
    if not aborts.value:
        return passed("a client's disconnect does not abort upstream", aborts)
    setting = "proxy_ignore_client_abort on;" if router.kind == "nginx" else ""
    how = f"Set `{setting}`" if setting else "Keep the upstream request until its first token, whatever the client does"
    fix = Fix(how, setting, changes={"aborts_on_disconnect": False})
    return failed("a client's disconnect aborts the upstream request, also in mid-transfer", aborts, fixes=(fix,))


RULE = Rule(
    id="KVF0038",
    slug="router-aborts-in-mid-transfer",
    severity=Severity.HIGH,
    since="0.1.0",
    check=each_router(judge, "aborts_on_disconnect"),
)
