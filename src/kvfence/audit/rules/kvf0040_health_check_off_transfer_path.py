"""The health check does not use the path that can fail.

What it checks:
    What kind of health check a deployment relies on: a check that only asks a port, or that generates with a fake
    bootstrap host, says nothing of the transfer between prefill and decode.

Why it matters:
    Pairs were seen that answered /health with 200 while every request timed out, and decoders that went on for an hour
    after prefill's restart with stale peers. Dynamo's own disaggregated canary uses a fake host, one token, rank 0.

Evidence:
    Probes in manifests, the router's arguments, the log.

How to fix:
    Add a probe that sends a real prompt through router, prefill and decode and compares the answer (`kvfence probe`).

References:
    NVIDIA/TensorRT-LLM#13713; vllm-project/vllm#49238, #58063; ai-dynamo/dynamo 1.6.1, its health canary.
"""

from kvfence.audit.judge import failed, passed, undecided
from kvfence.audit.routers import each_router
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import SourceFacts, Unknown

_OVER_THE_PATH = ("generate", "completion", "probe", "inference")
_NOT_OVER_IT = ("fake", "tcp", "grpc", "/health", "/healthz", "live", "/ready", "/ping", "/v1/models", "http", "none")


def judge(source: SourceFacts) -> Outcome:
    """Look at the kind of check; a generation through a fake bootstrap host is none."""
    kind = source.health_check
    if isinstance(kind, Unknown):
        return undecided(f"what the health check does is not known: {kind.reason}")
    said = kind.value.lower()
    if "fake" not in said and any(word in said for word in _OVER_THE_PATH):
        text = f"{kind.value}: whether it goes through both roles and looks at the answer is not shown"
        return passed(text, kind) if "probe" in said else undecided(text, kind)
    if any(word in said for word in _NOT_OVER_IT):
        fix = Fix(
            "Add a readiness check that sends a prompt through both roles and compares the answer",
            "kvfence probe run",
            changes={"health_check": "probe"},
        )
        return failed(f"{kind.value} says nothing of the transfer", kind, fixes=(fix,))
    return undecided(f"what {kind.value} exercises is not known", kind)


RULE = Rule(
    id="KVF0040",
    slug="health-check-off-transfer-path",
    severity=Severity.LOW,
    since="0.1.0",
    check=each_router(judge, "health_check"),
)
