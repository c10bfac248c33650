"""Deferred release is on, and the transfer backend does not take part in it.

What it checks:
    The transfer backend of an SGLang pair: mooncake and nixl support deferred release, mori from 0.5.22.

Why it matters:
    The setting is accepted with every backend. With one that sends no drain acknowledgement pages go back at once.

Evidence:
    `disaggregation_transfer_backend` in the server's arguments or `/server_info`.

How to fix:
    Use a backend that supports it.

References:
    sgl-project/sglang#35049, #35360, #38961.
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import disaggregated, failed, passed, undecided, upgrade
from kvfence.audit.rule import EngineRange, Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Unknown
from kvfence.evidence.versions import at_least

SUPPORTED = frozenset({"mooncake", "mooncake_tcp", "nixl"})
UNSUPPORTED = frozenset({"ascend", "fake"})


def judge(engine: Engine) -> Outcome:
    """Look the backend up."""
    backend = engine.facts.transfer_backend
    if isinstance(backend, Unknown):
        return undecided(f"the transfer backend is not known: {backend.reason}")
    name = backend.value.lower()
    if name in SUPPORTED:
        return passed(f"{name} takes part in deferred release", backend)
    if name == "mori":
        return _mori(engine)
    fix = Fix(
        "Start both roles with `--disaggregation-transfer-backend mooncake`",
        "--disaggregation-transfer-backend mooncake",
        changes={"transfer_backend": "mooncake"},
    )
    if name in UNSUPPORTED:
        return failed(f"{name} takes no part in deferred release", backend, fixes=(fix,))
    return undecided(f"whether {name} takes part in deferred release is not known", backend, fixes=(fix,))


def _mori(engine: Engine) -> Outcome:
    release, backend = engine.release, engine.facts.transfer_backend
    if isinstance(release, Unknown):
        return undecided(f"mori takes part from 0.5.22 on; {release.reason}", backend)
    is_in = at_least(release.value, "0.5.22")
    if isinstance(is_in, Unknown):
        return undecided(is_in.reason, release)
    if is_in:
        return passed("mori takes part in deferred release from 0.5.22 on", backend, release)
    return failed("mori takes part only from 0.5.22 on", backend, release, fixes=(upgrade(engine, "0.5.22"),))


RULE = Rule(
    id="KVF0013",
    slug="deferred-release-without-support",
    severity=Severity.HIGH,
    engines=(EngineRange("sglang", ">=0.5.19"),),
    since="0.1.0",
    check=disaggregated(judge),
)
