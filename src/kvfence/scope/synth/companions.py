"""The two files beside a synthetic log: what served when, and whose requests are excluded.

Not for: the log itself (``writing.py``).
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from kvfence.scope.relation import Interval
from kvfence.scope.synth.fleet import REPORTER, TESTERS
from kvfence.scope.synth.plan import (
    FIXED_RELEASE,
    FIXED_REPLICA,
    RESIZED_REPLICA,
    VULNERABLE_RELEASE,
    Model,
    Plan,
    replica_name,
)
from kvfence.scope.synth.rows import request_id
from kvfence.scope.synth.writing import Written

_HEAD = """\
# What served when, for the synthetic log beside it: made up, like the log.
# No engine is named, so that a prompt of exactly the pool's size counts as fitting, as in the post-mortem.
"""


def write_companions(plan: Plan, written: Written, out: Path) -> tuple[Path, Path]:
    """Write ``FILE.deployments.toml`` and ``FILE.exclude`` beside a log and give their paths."""
    deployments, exclude = Path(f"{out}.deployments.toml"), Path(f"{out}.exclude")
    deployments.write_text("\n".join([_HEAD, *_deployments(plan)]), "utf-8")
    exclude.write_text("\n".join(_exclusions(written)) + "\n", "utf-8")
    return deployments, exclude


def _exclusions(written: Written) -> Iterator[str]:
    yield f"account:{TESTERS}        # the provider's own tests"
    yield f"account:{REPORTER}        # who reported it"
    yield from (f"request:{request_id(number)}        # a colleague's own account" for number in written.excluded_ids)


def _deployments(plan: Plan) -> Iterator[str]:
    exposed, *others = plan.models
    for index in range(exposed.replicas):
        yield from map(_written, _exposed(plan, exposed, index))
    for model in others:
        whole = Interval(model=model.name, pool=model.pool, context=model.context, release=VULNERABLE_RELEASE)
        yield _written(structs.replace(whole, single=model.single))


def _exposed(plan: Plan, model: Model, index: int) -> Iterator[Interval]:
    """Give the intervals of one replica of the exposed model: large pool, small pool, perhaps a change, the fix."""
    change = {FIXED_REPLICA: plan.fixed_replica_from, RESIZED_REPLICA: plan.resized_replica_from}.get(index)
    whole = Interval(
        model=model.name,
        replica=replica_name(model, index),
        release=VULNERABLE_RELEASE,
        pool=plan.large_pool,
        context=plan.context,
    )
    yield structs.replace(whole, end=plan.start)
    yield structs.replace(whole, start=plan.start, end=change or plan.patched, pool=plan.pool)
    if index == FIXED_REPLICA:
        yield structs.replace(whole, start=change, end=plan.patched, pool=plan.pool, release=FIXED_RELEASE)
    if index == RESIZED_REPLICA:
        yield structs.replace(whole, start=change, end=plan.patched)
    yield structs.replace(whole, start=plan.patched, pool=plan.final_pool, release=FIXED_RELEASE)


def _written(interval: Interval) -> str:
    mode = "single" if interval.single else "disaggregated"
    names = {"model": interval.model, "replica": interval.replica, "release": interval.release, "mode": mode}
    times = {"from": interval.start, "to": interval.end}
    lines = ["[[interval]]", *(f'{key} = "{value}"' for key, value in names.items() if value)]
    lines += [f"{key} = {value:%Y-%m-%dT%H:%M:%SZ}" for key, value in times.items() if value]
    return "\n".join([*lines, f"pool = {interval.pool}", f"context = {interval.context}", ""])


def report_command(plan: Plan, out: Path, companions: tuple[Path, Path]) -> list[str]:
    """Give the arguments with which the log is judged."""
    window = [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (plan.start, plan.end)]
    deployments, exclude = (str(path) for path in companions)
    return [
        *("kvfence", "scope", "report", str(out), "--deployments", deployments, "--exclude", exclude),
        *("--window", *window),
    ]
