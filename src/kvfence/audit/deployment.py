"""Facts of sources become engines by role: what a rule looks at.

Two sources are joined into one engine only where they are of one role and of different kinds, and nothing that both
say differs; otherwise each stays an engine of its own. Not for: reading sources (``kvfence.evidence``).
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct, structs
from packaging.version import Version

from kvfence.evidence.facts import Known, Origin, SourceFacts, TextFact, Unknown
from kvfence.evidence.versions import release_of


class Role(StrEnum):
    """What an engine is in the deployment. UNKNOWN is not SINGLE: only the text or the caller says that."""

    PREFILL = "prefill"
    DECODE = "decode"
    SINGLE = "single"
    UNKNOWN = "unknown"


ROUTERS = frozenset({"sglang-router", "nginx", "envoy"})
DECLARED_KINDS = frozenset({"command", "manifest", "config", "environment"})
"""Kinds that say what was asked for, not what runs: they fill in what a running engine's sources leave open."""
_NOT_FACTS = frozenset({"name", "kind", "events", "problems"})
_MAY_DIFFER = frozenset({"model"})
"""A log names the path of the weights, an endpoint the served name."""
PREFIX_CACHE_OFF = frozenset({"", "none", "off", "false", "disabled", "chunkcache", "swachunkcache"})
"""Words for a cache that keeps no prefix for other requests."""
FACT_FIELDS = tuple(name for name in SourceFacts.__struct_fields__ if name not in _NOT_FACTS)


class Engine(Struct, frozen=True):
    """One engine process, or one data-parallel rank of it, as its joined sources show it."""

    role: Role
    facts: SourceFacts
    sources: tuple[SourceFacts, ...]

    @property
    def name(self) -> str:
        """Give the engine's name in findings: role, sources and rank."""
        names = " + ".join(dict.fromkeys(source.name for source in self.sources))
        rank = f" DP{self.facts.dp_rank.value}" if isinstance(self.facts.dp_rank, Known) else ""
        said = "" if self.role is Role.UNKNOWN else f"{self.role} "
        return said + (names if f"#{rank[1:]}" in names else names + rank)

    @property
    def engine(self) -> str:
        """Give the engine's name, empty where it is not known."""
        return self.facts.engine.value.lower() if isinstance(self.facts.engine, Known) else ""

    @property
    def release(self) -> Known[Version] | Unknown:
        """Give the engine's public release, or why it cannot be told."""
        return release_of(self.facts.version, self.facts.is_fork)

    def has_kind(self, *kinds: str) -> bool:
        """Tell whether one of the sources is of one of these kinds."""
        return any(source.kind in kinds for source in self.sources)


class Deployment(Struct, frozen=True):
    """Everything a rule may look at.

    single_tenant: the caller says that all requests are one tenant's.
    advertised: what clients are told that a prompt may be long, from every source and from the caller.
    baseline: the engines of an earlier audit, where one was given.
    """

    engines: tuple[Engine, ...] = ()
    routers: tuple[SourceFacts, ...] = ()
    advertised: tuple[Known[int], ...] = ()
    single_tenant: bool = False
    baseline: tuple[Engine, ...] | None = None

    def of_role(self, *roles: Role) -> tuple[Engine, ...]:
        """Give the engines of these roles."""
        return tuple(engine for engine in self.engines if engine.role in roles)

    @property
    def is_disaggregated(self) -> bool:
        """Tell whether at least one engine is known to be one half of a pair."""
        return bool(self.of_role(Role.PREFILL, Role.DECODE))

    def with_engines(self, engines: Iterable[Engine]) -> "Deployment":
        """Give the same deployment with other engines."""
        return structs.replace(self, engines=tuple(engines))


class Stated(Struct, frozen=True):
    """What the caller says besides the sources and their roles. advertised: tokens."""

    advertised: int | None = None
    single_tenant: bool = False


def assemble(
    sources: Sequence[SourceFacts], stated: Stated | None = None, baseline: Sequence[SourceFacts] | None = None
) -> Deployment:
    """Make a deployment of its sources' facts."""
    stated = stated or Stated()
    routers = tuple(source for source in sources if _is_router(source))
    engines = _engines([source for source in sources if not _is_router(source)])
    advertised = [fact for source in sources if isinstance(fact := source.advertised_context, Known)]
    if stated.advertised is not None:
        advertised.append(Known(stated.advertised, Origin("--advertised", key="advertised_context")))
    before = None if baseline is None else _engines([source for source in baseline if not _is_router(source)])
    return Deployment(engines, routers, tuple(advertised), stated.single_tenant, before)


def _is_router(source: SourceFacts) -> bool:
    return source.kind == "router" or (isinstance(source.engine, Known) and source.engine.value in ROUTERS)


def _role_of(role: TextFact) -> Role:
    if isinstance(role, Known) and role.value in {"prefill", "decode", "single"}:
        return Role(role.value)
    return Role.UNKNOWN


def _engines(sources: Sequence[SourceFacts]) -> tuple[Engine, ...]:
    made: list[Engine] = []
    for role in Role:
        of_role = [source for source in sources if _role_of(source.role) is role]
        declared = [source for source in of_role if _only_fills_in(source)]
        running = _join_kinds([source for source in of_role if not _only_fills_in(source)])
        if running:
            made += [_engine(role, [*group, *_fitting(group, declared)]) for group in running]
            left_out = [one for one in declared if not any(_agree([*group, one]) for group in running)]
            made += [_engine(role, [one]) for one in left_out]
        else:
            made += [_engine(role, group) for group in _join_kinds(declared)]
    return tuple(made)


def _only_fills_in(source: SourceFacts) -> bool:
    """Tell whether a source only adds to a running engine: a declaration, or an endpoint that shows no pool."""
    sizes = (source.pool_tokens, source.pool_tokens_estimated, source.effective_input_limit)
    return source.kind in DECLARED_KINDS or (source.kind != "log" and not any(isinstance(s, Known) for s in sizes))


def _join_kinds(sources: list[SourceFacts]) -> list[list[SourceFacts]]:
    """Join sources where there is exactly one of each kind and they agree; else leave each by itself."""
    if len({source.kind for source in sources}) == len(sources) and sources and _agree(sources):
        return [sources]
    return [[source] for source in sources]


def _fitting(group: list[SourceFacts], declared: list[SourceFacts]) -> list[SourceFacts]:
    """Give the declarations that fill an engine in: all that fit it, if they also agree with each other."""
    fitting = [source for source in declared if _agree([*group, source])]
    return fitting if _agree([*group, *fitting]) else []


def _agree(sources: Sequence[SourceFacts]) -> bool:
    """Tell whether no two sources say different things; a documented default is not something said."""
    for field in FACT_FIELDS:
        said = [fact for source in sources if isinstance(fact := getattr(source, field), Known) and not fact.default_of]
        if field not in _MAY_DIFFER and len({_meant(field, fact.value) for fact in said}) > 1:
            return False
    return True


def _meant(field: str, value: object) -> str:
    """Give what two sources may call by different words: an argument says disabled, the log names a class."""
    return str(str(value).lower() in PREFIX_CACHE_OFF) if field == "prefix_cache" else repr(value)


def _engine(role: Role, sources: list[SourceFacts]) -> Engine:
    filled = {field: fact for field in FACT_FIELDS if (fact := _first_known(sources, field)) is not None}
    events = tuple(event for source in sources for event in source.events)
    problems = tuple(problem for source in sources for problem in source.problems)
    return Engine(role, structs.replace(sources[0], **filled, events=events, problems=problems), tuple(sources))


def _first_known(sources: list[SourceFacts], field: str) -> Known[object] | None:
    """Give what the first source says that says it itself, else the first documented default."""
    known = [fact for source in sources if isinstance(fact := getattr(source, field), Known)]
    return min(known, key=lambda fact: bool(fact.default_of), default=None)
