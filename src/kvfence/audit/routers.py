"""Checks of what stands in front of a pair: routers, gateways and load balancers."""

from collections.abc import Callable, Iterator

from msgspec import structs

from kvfence.audit.deployment import Deployment
from kvfence.audit.judge import SINGLE_IS_SAFE, not_applicable, undecided
from kvfence.audit.rule import Check, Outcome
from kvfence.evidence.facts import Known, SourceFacts


def each_router(judge: Callable[[SourceFacts], Outcome], *fields: str) -> Check:
    """Make a check of each router, and of each engine's source that says something of ``fields``."""

    def check(deployment: Deployment) -> Iterator[Outcome]:
        spoken = [engine.facts for engine in deployment.engines if _says(engine.facts, fields)]
        subjects = [*deployment.routers, *spoken]
        if subjects:
            yield from (structs.replace(judge(source), subject=source.name) for source in subjects)
        elif deployment.engines and all(engine.role == "single" for engine in deployment.engines):
            yield not_applicable(SINGLE_IS_SAFE)
        else:
            yield undecided("no router or load balancer was given: name its configuration or its log")

    return check


def _says(facts: SourceFacts, fields: tuple[str, ...]) -> bool:
    return any(isinstance(getattr(facts, field), Known) for field in fields)
