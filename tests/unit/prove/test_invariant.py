"""The inductive invariant: it is proved with every guard on, and each guard's absence is found where it matters."""

import pytest
import z3

from kvfence.cli.main import main
from kvfence.cli.prove_invariant import _show_failures, exit_code
from kvfence.protocol.guards import GUARDS, Rules
from kvfence.prove.invariant.action import Effect, Guards, action
from kvfence.prove.invariant.beside import trace
from kvfence.prove.invariant.induction import Failure, Induction, Proof
from kvfence.prove.invariant.rules import ACTIONS, CONJUNCTS
from kvfence.prove.invariant.verdicts import OUTSIDE, outcome_of, without

CPU_S_MAX = 20
"""The bound is 10 s on a machine of its own; here two cores are shared."""


@pytest.fixture(scope="module")
def proved() -> tuple[Induction, Proof]:
    """Prove it once."""
    induction = Induction()
    return induction, induction.prove(Rules.all())


def test_every_conjunct_is_kept_by_every_action(proved: tuple[Induction, Proof]) -> None:
    """With every guard on the invariant is inductive, and the number of obligations is pinned."""
    proof = proved[1]
    assert [(f.action, f.conjunct) for f in proof.failures] == []
    assert (proof.conjuncts, proof.actions, proof.obligations) == (46, 73, 46 * 74)
    assert proof.cpu_s < CPU_S_MAX


FAILING = {
    "attempt-is-current": {("take-sent", "own-manifest"), ("dispatch", "drained-is-quiet")},
    "peer-is-current": {("dispatch", "worker-is-placed")},
    "stamp-at-read": {("emit-foul", "no-leak")},
    "digest-matches": {("adopt", "adopted-is-own")},
    "layout-agrees": {("take-sent", "layout-is-ours")},
    "quarantine-on-revoke": {("give-up", "no-stray-write")},
    "quarantine-on-mismatch": {("end-mismatched", "mismatch-is-kept"), ("give-up-mismatch", "mismatch-is-kept")},
    "drain-or-fence": {("free-late", "no-stray-write"), ("hear-exit", "no-stray-write")},
    "hold-source": {("let-go", "source-is-held")},
    "pass-ended": {("end-running", "pass-holds-pages"), ("let-go", "computing-holds-pages")},
    "tombstone": {("abort-unknown", "drained-is-quiet")},
    "fence-on-start": {("restart", "no-stray-write")},
    "batch-bound": {("post", "batch-is-bounded")},
    "zero-tail": {("seal", "sealed-has-no-slack")},
}
"""Each guard with what no longer holds without it."""

STANDS = ("fits", "count-matches", "stamp-at-adopt", "settle-before-cancel", "tenant-salt", "verified-before-shared")
"""Guards without which the proof stands: another that is on answers the fault too, or it is none of pages."""


@pytest.mark.parametrize("name", FAILING)
def test_a_guard_taken_away_names_action_and_conjunct(proved: tuple[Induction, Proof], name: str) -> None:
    """Without one guard the failing action and conjunct are named, with a state in which it happens."""
    verdict = without(proved[0], name)
    failing = {(failure.action, failure.conjunct) for failure in verdict.fails}
    assert FAILING[name] <= failing
    assert verdict.outcome != "stands"
    assert all(failure.model and not failure.unknown for failure in verdict.fails)


@pytest.mark.parametrize("name", STANDS)
def test_a_guard_that_is_not_needed_is_said_to_be_so(proved: tuple[Induction, Proof], name: str) -> None:
    """Where the proof stands without a guard the reason is given."""
    verdict = without(proved[0], name)
    assert (verdict.outcome, verdict.fails) == ("stands", ())
    assert verdict.because


def test_every_guard_is_judged() -> None:
    """No guard is forgotten: each fails, stands, or is judged by the slow run (refusal-is-final)."""
    assert set(GUARDS) == {*FAILING, *STANDS, "refusal-is-final"}
    assert set(OUTSIDE) <= set(STANDS)


def test_the_incident_is_found(proved: tuple[Induction, Proof]) -> None:
    """Without stamps and digests a page that was reserved and never written is read, and its token leaves."""
    verdict = without(proved[0], "stamp-at-read", "stamp-at-adopt", "digest-matches", "count-matches")
    assert ("emit-foul", "no-leak") in {(failure.action, failure.conjunct) for failure in verdict.fails}


def test_a_new_unguarded_action_is_found(proved: tuple[Induction, Proof], monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that frees a page by a clock breaks the invariant: the check can fail."""

    @action("page")
    def free_by_clock(o, s, g, p):  # type: ignore[no-untyped-def]
        """A page is free because time has passed."""
        return Effect(True, s.but(page=lambda q: o.where(q == p, 0, s.page(q))))

    monkeypatch.setattr("kvfence.prove.invariant.induction.ACTIONS", (free_by_clock,))
    failing = {failure.conjunct for failure in Induction().prove(Rules.all()).failures}
    assert {"table-is-owned", "no-stray-write"} & failing


def test_the_conjuncts_can_hold_together(proved: tuple[Induction, Proof]) -> None:
    """A state with a running pass and a posted write satisfies every conjunct: nothing follows from a contradiction."""
    induction = proved[0]
    stage = induction._stage(("attempt", "attempt", "index"), ())
    s, (a, b, i) = induction.state, stage.parameters
    stage.solver.push()
    stage.solver.add(s.passing(a), s.write(b, i) == 1, a != b, s.fence() == 1, s.decode(b) == 2)
    answer = stage.solver.check()
    stage.solver.pop()
    assert answer == z3.sat


def test_every_action_can_happen(proved: tuple[Induction, Proof]) -> None:
    """No action is impossible where the invariant holds, but for the one that its guard forbids."""
    induction = proved[0]
    guards = Guards(Rules.all(), set())
    impossible = []
    for each in ACTIONS:
        stage = induction._stage(each.parameters, ())
        may = each.does(stage.terms, induction.state, guards, *stage.parameters).may
        stage.solver.push()
        stage.solver.add(z3.And(True, may))
        if stage.solver.check() != z3.sat:
            impossible.append(each.name)
        stage.solver.pop()
    assert impossible == ["emit-foul", "free-late"]


def test_names_are_unique() -> None:
    """A conjunct or an action is found by its name."""
    assert len({c.name for c in CONJUNCTS}) == len(CONJUNCTS)
    assert len({a.name for a in ACTIONS}) == len(ACTIONS)


def test_an_unknown_guard_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A guard that there is not is a usage error that lists those there are."""
    with pytest.raises(SystemExit) as ended:
        main(["prove", "invariant", "--without", "no-such-guard"])
    assert ended.value.code == 2
    assert "no guard is called no-such-guard" in capsys.readouterr().err


def test_the_search_tells_the_harm_beside_it() -> None:
    """For a guard with a known world the steps to the harm stand beside what the proof says, and end with it."""
    steps = trace("hold-source")
    assert steps[0].startswith("1. ")
    assert steps[-1] == "broken: source-held"


def test_a_question_that_was_given_up_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """Where Z3 gave up nothing is said to fail: 3; beside a state that was found: 1."""
    given_up = Failure("post", "no-leak", safety=True, unknown=True, model=())
    real = Failure("seal", "layout-is-ours", safety=False, unknown=False, model=(("fence", "exit"),))
    assert (outcome_of([given_up]), outcome_of([given_up, real])) == ("unknown", "breaks the argument")
    assert (exit_code([given_up], []), exit_code([given_up, real], []), exit_code([], ["stands"])) == (3, 1, 0)
    assert exit_code([], ["unknown"]) == 3
    _show_failures([given_up])
    said = " ".join(capsys.readouterr().err.split())
    assert "Z3 gave up" in said
    assert "does not keep" not in said
    assert "for example" not in said
