"""Sources become engines: joined where nothing they say differs, kept apart otherwise."""

from packaging.version import Version

from kvfence.audit.deployment import Role, Stated, assemble
from kvfence.evidence.facts import NOT_SEEN, Known, Origin, Unknown
from kvfence.evidence.versions import at_least, release_of
from tests.audit.cases import source

ORIGIN = Origin("here")


def test_a_log_and_a_manifest_of_one_role_are_one_engine() -> None:
    """What was asked for fills in what the log leaves open."""
    log = source("prefill.log", role="prefill", pool_tokens=100)
    manifest = source("prefill.yaml", "manifest", role="prefill", context_len=200)
    (engine,) = assemble([log, manifest]).engines
    assert engine.role is Role.PREFILL
    assert (engine.facts.pool_tokens.value, engine.facts.context_len.value) == (100, 200)  # type: ignore[union-attr]
    assert engine.name == "prefill prefill.log + prefill.yaml"


def test_two_logs_of_one_role_stay_two_engines() -> None:
    """A replica whose pool is not shown is not covered by the one whose pool is."""
    first = source("a.log", role="prefill", pool_tokens=100)
    second = source("b.log", role="prefill")
    assert len(assemble([first, second]).engines) == 2


def test_sources_that_contradict_each_other_are_not_joined() -> None:
    """Another page size in the manifest than in the log: each is judged by itself."""
    log = source("prefill.log", role="prefill", pool_tokens=100, page_size=64)
    manifest = source("prefill.yaml", "manifest", role="prefill", page_size=1, context_len=200)
    engines = assemble([log, manifest]).engines
    assert [isinstance(engine.facts.context_len, Unknown) for engine in engines] == [True, False]


def test_a_documented_default_contradicts_nothing() -> None:
    """What the text says wins over what a release does by itself."""
    log = source("decode.log", role="decode", pool_tokens=100)
    manifest = source("decode.yaml", "manifest", role="decode", deferred_release=False)
    import msgspec

    default = msgspec.structs.replace(log, deferred_release=Known(True, ORIGIN, "sglang 0.5.22"))
    (engine,) = assemble([default, manifest]).engines
    assert isinstance(engine.facts.deferred_release, Known)
    assert engine.facts.deferred_release.value is False


def test_a_role_is_never_taken_from_a_name() -> None:
    """A file called prefill.log is of unknown role until its text or the caller says so."""
    (engine,) = assemble([source("prefill.log", pool_tokens=100)]).engines
    assert engine.role is Role.UNKNOWN


def test_routers_are_no_engines() -> None:
    """A router has no pool; what it advertises counts as told to clients."""
    deployment = assemble([source("nginx.conf", "router", engine="nginx", advertised_context=5)], Stated(advertised=9))
    assert deployment.engines == ()
    assert [fact.value for fact in deployment.advertised] == [5, 9]


def test_a_release_is_told_from_a_fork_and_a_build() -> None:
    """Public releases and builds for a device are known; forks, other labels and texts are not."""
    for text in ("0.5.19", "0.32.0+cpu", "0.11.0+cu128", "v0.20.1"):
        assert isinstance(release_of(Known(text, ORIGIN), NOT_SEEN), Known), text
    for text in ("0.5.19+vendor.3", "main", "0.4.9-era (2025-07)"):
        assert isinstance(release_of(Known(text, ORIGIN), NOT_SEEN), Unknown), text
    assert isinstance(release_of(Known("0.5.19", ORIGIN), Known(True, ORIGIN)), Unknown)


def test_a_build_on_the_way_to_a_release_cannot_be_told() -> None:
    """A development build of 0.5.22 may or may not have what 0.5.22 has; later ones do."""
    assert at_least(Version("0.5.22"), "0.5.22") is True
    assert at_least(Version("0.5.21.post1"), "0.5.22") is False
    assert at_least(Version("0.5.23.dev4"), "0.5.22") is True
    assert isinstance(at_least(Version("0.5.22rc1"), "0.5.22"), Unknown)
