"""What a caller names and states: sources with roles, and numbers that stand for a source.

Not for: reading sources (``kvfence.evidence``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kvfence.audit.deployment import Role, Stated
from kvfence.core.errors import EvidenceError
from kvfence.evidence.deployment import Spec, is_deployment, load_deployment
from kvfence.evidence.facts import Known, Origin, SourceFacts

_ROLES = (Role.PREFILL, Role.DECODE, Role.SINGLE)
STATED = "stated"
"""The kind of a source that a caller's own numbers make."""


class Numbers(Struct, frozen=True):
    """Numbers that a caller gives without a source. pools: ``681280`` or ``prefill=681280``, one a role."""

    pools: tuple[str, ...] = ()
    context: int | None = None
    page_size: int | None = None
    engine: str | None = None
    version: str | None = None


def spec_of(text: str) -> Spec:
    """Read ``FILE`` or ``FILE=ROLE``; a file that is called so wins."""
    name, _, role = text.rpartition("=")
    if name and role in _ROLES and not Path(text).exists():
        return Spec(name, role)
    return Spec(text)


def specs_of_roles(by_role: Mapping[Role, Sequence[str]], token_variable: str | None = None) -> list[Spec]:
    """Give the specs of URLs or files that are named with their role."""
    return [Spec(name, str(role), token_variable) for role, names in by_role.items() for name in names]


def stated_in_files(specs: Iterable[Spec], stated: Stated) -> Stated:
    """Add what deployment files among the sources say: tenants and the advertised context; the caller's own wins."""
    for spec in specs:
        if not is_deployment(spec.source):
            continue
        found = load_deployment(spec.source)
        advertised = stated.advertised if stated.advertised is not None else found.advertised
        stated = Stated(advertised, stated.single_tenant or found.tenants == 1)
    return stated


def facts_of_numbers(numbers: Numbers) -> list[SourceFacts]:
    """Give a source for each pool that the caller states.

    Raises:
        EvidenceError: a pool is not a number, or a context is stated without a pool.
    """
    if not numbers.pools and numbers.context is not None:
        raise EvidenceError("--context needs --pool: `--pool prefill=681280 --pool decode=2040000 --context 1048576`")
    return [_stated(role, pool, numbers) for role, pool in _pools(numbers.pools)]


def _pools(texts: Sequence[str]) -> Iterator[tuple[str, int]]:
    for text in texts:
        role, _, number = text.rpartition("=")
        digits = number.replace(",", "").replace("_", "")
        if (role and role not in _ROLES) or not digits.isdecimal() or len(digits) > 15:
            raise EvidenceError(
                f"--pool {text}: write a number of tokens, or ROLE=NUMBER with prefill, decode or single"
            )
        yield role, int(digits)


def _stated(role: str, pool: int, numbers: Numbers) -> SourceFacts:
    name = f"stated {role}".strip()
    values: dict[str, int | str | None] = {
        "pool_tokens": pool,
        "context_len": numbers.context,
        "page_size": numbers.page_size,
        "engine": numbers.engine,
        "version": numbers.version,
        "role": role or None,
    }
    known = {
        field: Known(value, Origin("command line", quote=f"{field} {value}", key=field))
        for field, value in values.items()
        if value is not None
    }
    return SourceFacts(name, STATED, **known)  # type: ignore[arg-type]
