"""Recorded traces against the model: honest ones conform, and nothing else does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvfence.driver.mutants import INCIDENT_LACKS, placeholder_on_refusal
from kvfence.protocol.guards import Rules
from kvfence.prove.replay import Ruling, replay
from kvfence.sim.campaign import NUM_REQUESTS
from kvfence.sim.cases import CASES, CRAMPED, world_of_case
from kvfence.sim.faults import EVERYTHING, Faults
from kvfence.sim.process import Setup
from kvfence.sim.workload import draw_requests
from kvfence.sim.world import World
from tests.recorded import bodies, record, record_seed, resealed

HONEST = Faults(**{**{f: getattr(EVERYTHING, f) for f in Faults.__struct_fields__}, "confuse": 0.0})
"""Every fault but the one in which a message comes under a name that nobody gave it."""


@pytest.mark.parametrize("seed", range(6))
def test_honest_traces_conform(tmp_path: Path, seed: int) -> None:
    """Losses, repetitions, deaths, corrupt and late writes: all of it is allowed, and what was received was sent."""
    paths = record_seed(tmp_path, seed, faults=HONEST)
    found = replay(paths)
    assert {trace.verdict for trace in found.traces} == {Ruling.CONFORMING}, [t.why for t in found.traces]
    assert found.num_steps > 50
    assert found.num_compared > 20
    assert any(answers.refused for answers in found.coverage)


def test_what_nobody_sent_is_not_allowed(tmp_path: Path) -> None:
    """A completion under another attempt's name is found by holding both traces against each other, and only so."""
    paths = record_seed(tmp_path, 16)
    together, apart = replay(paths), [replay([path]).verdict for path in paths]
    assert together.verdict is Ruling.NOT_ALLOWED
    assert set(apart) == {Ruling.CONFORMING}
    trace = next(each for each in together.traces if each.departure is not None)
    assert trace.role == "decode"
    assert "prefill" in trace.why


def test_the_incident_is_found_in_its_traces(tmp_path: Path) -> None:
    """A dispatch rewritten into a placeholder is one that the gateway never sent."""

    def build(stepper: object) -> World:
        from random import Random

        setup = Setup(Rules.without(*INCIDENT_LACKS), CRAMPED, rewrites=(placeholder_on_refusal(CRAMPED),), seed=1)
        return World(setup, draw_requests(Random(1), NUM_REQUESTS, 24), stepper)  # type: ignore[arg-type]

    found = replay(record(tmp_path, build))
    assert [t.role for t in found.traces if t.verdict is Ruling.NOT_ALLOWED] == ["prefill"]


VIOLATED = {
    "batch-bound": "batches-bounded",
    "settle-before-cancel": "no-cut-transfer",
    "drain-or-fence": "drained-is-quiet",
    "pass-ended": "work-holds-pages",
    "tenant-salt": "holders-share-a-salt",
}


@pytest.mark.parametrize("guard", VIOLATED)
def test_a_property_that_broke_is_named_with_its_step(tmp_path: Path, guard: str) -> None:
    """Traces of a node without a guard follow from its rules, and show what those let happen."""
    case, rules = CASES[guard], Rules.without(guard)
    for seed in range(case.start, case.start + case.seeds):
        paths = record(tmp_path / str(seed), lambda stepper, s=seed: world_of_case(case, rules, s, stepper))  # type: ignore[misc]
        found = replay(paths)
        broken = [trace for trace in found.traces if VIOLATED[guard] in trace.violated]
        if broken:
            assert found.verdict is Ruling.PROPERTY_VIOLATED
            assert broken[0].absent
            assert 1 <= broken[0].violated[VIOLATED[guard]] <= broken[0].num_steps
            return
    raise AssertionError(f"no trace without {guard} broke {VIOLATED[guard]}")


# ---- what is not a whole trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decode worker's trace."""
    paths = record_seed(tmp_path_factory.mktemp("honest"), 0, faults=HONEST)
    return max((path for path in paths if "decode" in path.name), key=lambda path: path.stat().st_size)


def without_end(raw: bytes) -> bytes:
    """Cut at a line: what a killed process leaves."""
    return b"".join(raw.splitlines(keepends=True)[:-1])


SPOILS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in a line": (lambda raw: raw[:-9], "truncated"),
    "cut at a line": (without_end, "no end"),
    "cut after the header": (lambda raw: raw.splitlines(keepends=True)[0], "no step"),
    "empty": (lambda raw: b"", "not a trace header"),
    "of another schema": (lambda raw: raw.replace(b'"schema":4', b'"schema":2'), "schema 2"),
    "of foreign rules": (
        lambda raw: resealed([bodies(raw)[0].replace(b'"absent":[]', b'"absent":["luck@decode"]'), *bodies(raw)[1:]]),
        "luck@decode",
    ),
    "not a trace": (lambda raw: b'{"type":"hello"}\n' * 3, "not a trace header"),
    "without its beginning": (lambda raw: resealed([bodies(raw)[0], *bodies(raw)[9:]]), "begins at step 9"),
    "with time going back": (lambda raw: raw, "time goes back"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_what_is_not_whole_is_unknown(trace: Path, tmp_path: Path, name: str) -> None:
    """Never conforming, and never a crash: the reason is told."""
    spoil, says = SPOILS[name]
    raw = trace.read_bytes()
    if name == "with time going back":
        lines = bodies(raw)
        at_ns = lines[5].split(b'"at_ns":')[1].split(b",")[0]
        lines[5] = lines[5].replace(b'"at_ns":' + at_ns, b'"at_ns":0', 1)
        raw = resealed(lines)
    spoilt = tmp_path / "spoilt.ndjson"
    spoilt.write_bytes(spoil(raw))
    found = replay([spoilt])
    assert found.verdict is Ruling.UNKNOWN
    assert says in found.traces[0].why


def test_steps_of_another_node_are_not_allowed(trace: Path, tmp_path: Path) -> None:
    """A header of one life before the steps of another, or of another role: the first step that differs is told."""
    raw = trace.read_bytes()
    for old, new in ((b'"incarnation":"0', b'"incarnation":"f'), (b'"role":"decode"', b'"role":"gateway"')):
        lines = bodies(raw)
        lines[0] = lines[0].replace(old, new)
        (tmp_path / "foreign.ndjson").write_bytes(resealed(lines))
        found = replay([tmp_path / "foreign.ndjson"]).traces[0]
        assert found.verdict is Ruling.NOT_ALLOWED
        assert found.departure is not None
        assert found.departure.allowed or found.departure.why


def test_one_life_has_one_trace(trace: Path, tmp_path: Path) -> None:
    """A copy beside the original is not taken for another worker."""
    (tmp_path / "copy.ndjson").write_bytes(trace.read_bytes())
    assert [t.verdict for t in replay([trace, tmp_path / "copy.ndjson"]).traces] == [Ruling.CONFORMING, Ruling.UNKNOWN]


def test_a_full_file_is_read_with_its_successor(tmp_path: Path) -> None:
    """What was kept and what came after conform together; where more was lost, nobody can tell."""
    drawn = {}
    for name, bytes_max in (("whole", 1 << 30), ("kept", 0), ("lost", 4000)):
        folder = tmp_path / name
        limit = bytes_max or 3 * max(path.stat().st_size for path in drawn["whole"]) // 4

        def build(stepper: object) -> World:
            from kvfence.sim.campaign import world_of

            world = world_of(0, Rules.all(), HONEST)
            return World(world.setup, world.waiting, stepper)  # type: ignore[arg-type]

        drawn[name] = record(folder, build, limit)
    assert any(path.with_name(path.name + ".1").exists() for path in drawn["kept"])
    verdicts = {name: replay(paths).verdict for name, paths in drawn.items()}
    assert verdicts == {"whole": Ruling.CONFORMING, "kept": Ruling.CONFORMING, "lost": Ruling.UNKNOWN}
