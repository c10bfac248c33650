"""The incident by its two numbers and roles: it fails, with the arithmetic and the prompts that are dangerous."""

import pytest

from kvfence.audit.deployment import Stated, assemble
from kvfence.audit.runner import Audit, exit_code, run
from kvfence.core.verdict import Severity, Verdict
from kvfence.evidence.facts import SourceFacts
from tests.audit.cases import source

POOL, CONTEXT = 681_280, 1_048_576


def engine(role: str, pool: int = POOL, **facts: object) -> SourceFacts:
    """One half of the incident's pair."""
    name = f"{role}.log"
    return source(name, engine="sglang", role=role, pool_tokens=pool, context_len=CONTEXT, page_size=64, **facts)


def audited(*sources: SourceFacts, stated: Stated | None = None) -> Audit:
    """Ask all rules."""
    return run(assemble(sources, stated))


def test_the_two_numbers_and_roles_are_enough() -> None:
    """Pool, context and role alone give FAIL, critical, exit code 1."""
    audit = audited(engine("prefill"), engine("decode", 2_040_000))
    assert audit.verdict_of("KVF0001") is Verdict.FAIL
    assert audit.verdict_of("KVF0004") is Verdict.FAIL
    assert exit_code(audit) == exit_code(audit, Severity.CRITICAL) == 1


def test_the_arithmetic_and_the_dangerous_prompts_are_said() -> None:
    """min(context, pool) - 1 - 5, and the range of prompts that prefill refuses and decode takes."""
    (finding,) = [
        each
        for each in audited(engine("prefill"), engine("decode", 2_040_000)).findings
        if each.rule == "KVF0001" and each.verdict is Verdict.FAIL
    ]
    assert "min(1,048,576, 681,280) - 1 - 5 = 681,274" in finding.message
    assert "prompts of 681,274 to 1,048,569 tokens" in finding.message
    assert "decode, whose limit is 1,048,570, takes them" in finding.message
    assert finding.fixes[0].setting == "--context-length 681216"
    assert "2,097,152" in finding.fixes[1].text


@pytest.mark.parametrize("role", ["prefill", "decode", "unknown"])
def test_it_fails_whatever_the_role(role: str) -> None:
    """A role that is not known does not make a small pool safe."""
    assert audited(engine(role)).verdict_of("KVF0001") is Verdict.FAIL


def test_a_proven_single_node_is_another_matter() -> None:
    """The post-mortem says that a single node refuses rightly."""
    assert audited(engine("single")).verdict_of("KVF0001") is Verdict.NOT_APPLICABLE


def test_a_gateways_limit_never_makes_it_pass() -> None:
    """A gateway that stops long prompts is not the engine's limit."""
    router = source("gateway.yaml", "router", engine="nginx", advertised_context=100_000)
    stated = Stated(advertised=100_000)
    audit = audited(engine("prefill"), engine("decode", 2_040_000), router, stated=stated)
    assert audit.verdict_of("KVF0001") is Verdict.FAIL


def test_one_rank_of_many_is_enough() -> None:
    """Pools of data-parallel ranks are never added up: the smallest decides."""
    ranks = [engine("prefill", 400_000, dp_rank=rank) for rank in range(8)]
    audit = audited(*ranks, engine("decode", 2_040_000))
    assert sum(each.rule == "KVF0001" and each.verdict is Verdict.FAIL for each in audit.findings) == 8


def test_unknown_wins_over_pass() -> None:
    """A prefill that is right and a decode that was not shown are together unknown."""
    audit = audited(engine("prefill", 2_100_000))
    verdicts = {each.verdict for each in audit.findings if each.rule == "KVF0001"}
    assert verdicts == {Verdict.PASS, Verdict.UNKNOWN}
    assert audit.verdict_of("KVF0001") is Verdict.UNKNOWN
