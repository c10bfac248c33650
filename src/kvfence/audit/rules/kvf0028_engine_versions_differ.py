"""Prefill and decode run different releases.

What it checks:
    Engine and version of both halves of a pair, as they are written.

Why it matters:
    The hand-off is an internal protocol that changes between releases. SGLang of mixed versions ignores drain
    acknowledgements without a generation and waits for the release time-out.

Evidence:
    The version of each role.

How to fix:
    Upgrade both roles to the same release.

References:
    sgl-project/sglang#38961 ("Mixed SGLang versions may wait for the KV release timeout").
"""

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import each_pair
from kvfence.audit.parity import agreement
from kvfence.audit.rule import Fix, Outcome, Rule
from kvfence.core.verdict import Severity
from kvfence.evidence.facts import Known


def judge(prefill: Engine, decode: Engine) -> Outcome:
    """Compare the versions as text: two builds of one release may differ too."""
    return agreement("version", (prefill.facts.version, decode.facts.version), lambda value: _same(decode, value))


def _same(decode: Engine, version: str) -> Fix:
    name = decode.facts.engine.value if isinstance(decode.facts.engine, Known) else "the engine"
    return Fix(
        f"Run {name} {version} on decode too", f"{name}=={version}", roles=("decode",), changes={"version": version}
    )


RULE = Rule(
    id="KVF0028", slug="engine-versions-differ", severity=Severity.MEDIUM, since="0.1.0", check=each_pair(judge)
)
