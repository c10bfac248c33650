"""``kvfence prove invariant``: an inductive invariant for any number of attempts, pages and sizes, checked by Z3."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from kvfence.cli.exits import ExitCode, missing_extra
from kvfence.cli.render import print_json, print_note, print_table
from kvfence.core.errors import SettingsError
from kvfence.protocol.guards import ASKED, GUARDS, Rules

if TYPE_CHECKING:
    from kvfence.prove.invariant.induction import Failure, Proof
    from kvfence.prove.invariant.verdicts import Outcome, Verdict

app = typer.Typer()


@app.command()
def invariant(
    absent: Annotated[
        list[str] | None,
        typer.Option(
            "--without", metavar="GUARD", help="Take this guard away, everywhere or at one place (name@place)."
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Take every guard away, one by one: half a minute.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Prove for any number of attempts, pages and sizes that no token leaves computed from foreign bytes.

    Every conjunct of an inductive invariant is shown at the start and after every action. With a guard taken away:
    which action no longer keeps which conjunct, and a state in which that happens. Exit code 0 where the proof stands,
    1 where it does not, 3 where Z3 gave up on a question and nothing was found.
    """
    names = _known(absent or [])
    try:
        from kvfence.prove.invariant.beside import trace
        from kvfence.prove.invariant.induction import Induction
        from kvfence.prove.invariant.rules import CONJUNCTS
        from kvfence.prove.invariant.verdicts import ASSUMPTIONS, each_guard, without
    except ModuleNotFoundError as error:
        raise typer.Exit(missing_extra("prove invariant", "prove", error)) from None
    induction = Induction()
    proof = induction.prove(Rules.all())
    verdicts = [without(induction, *names)] if names else list(each_guard(induction)) if each else []
    steps = trace(verdicts[0].guard) if names and verdicts[0].fails else ()
    if json:
        print_json(
            _Document(proof.holds, proof, {c.name: c.statement for c in CONJUNCTS}, verdicts, steps, ASSUMPTIONS)
        )
    else:
        _show(proof, verdicts)
        _show_trace(steps)
    failures = [*proof.failures, *(verdicts[0].fails if names else ())]
    raise typer.Exit(exit_code(failures, [verdict.outcome for verdict in verdicts]))


def exit_code(failures: "Sequence[Failure]", outcomes: "Sequence[Outcome]") -> ExitCode:
    """Give the exit code: a state that was found counts more than a question on which Z3 gave up."""
    if any(not failure.unknown for failure in failures):
        return ExitCode.FOUND
    return ExitCode.COULD_NOT_TELL if failures or "unknown" in outcomes else ExitCode.NOTHING_FOUND


class _Document(Struct):
    """The report as JSON."""

    holds: bool
    proof: "Proof"
    conjuncts: dict[str, str]
    guards: "list[Verdict]"
    trace: tuple[str, ...]
    assumes: tuple[str, ...]


def _known(names: Sequence[str]) -> list[str]:
    unknown = [name for name in names if name not in GUARDS and name not in ASKED]
    if unknown:
        raise SettingsError([f"no guard is called {name}; kvfence knows {', '.join(GUARDS)}" for name in unknown])
    return list(names)


def _show(proof: "Proof", verdicts: "Sequence[Verdict]") -> None:
    unknown = all(failure.unknown for failure in proof.failures)
    said = "proved" if proof.holds else "UNKNOWN" if unknown else "NOT proved"
    print_note(f"All guards on: {said}. {proof.conjuncts} conjuncts, {proof.actions} actions, "
               f"{proof.obligations} obligations, {proof.cpu_s:.1f} s of CPU time.")  # fmt: skip
    _show_failures(proof.failures)
    if len(verdicts) > 1:
        rows = [(_named(v), v.outcome, v.because or _first(v.fails)) for v in verdicts]
        print_table("", ("without", "the proof", "where"), rows)
    for verdict in verdicts if len(verdicts) == 1 else ():
        print_note(f"Without {', '.join(verdict.without)}: {verdict.outcome}. {verdict.because}")
        _show_failures(verdict.fails)


def _show_trace(steps: "Sequence[str]") -> None:
    if steps:
        print_note("  and how the search comes to the harm:")
    for step in steps:
        print_note(f"    {step}")


def _named(verdict: "Verdict") -> str:
    more = len(verdict.without) - 1
    return verdict.guard if not more else f"{verdict.guard} and the {more} others that answer its fault"


def _first(failures: "Sequence[Failure]") -> str:
    real = [f for f in failures if not f.unknown]
    failure = next((f for f in real if f.safety), (real or failures)[0])
    return f"{failure.action} {'breaks' if real else 'may break: Z3 gave up on'} {failure.conjunct}"


def _show_failures(failures: "Sequence[Failure]") -> None:
    for failure in failures:
        kind = "a promise" if failure.safety else "part of the argument"
        said = "UNKNOWN, Z3 gave up: does it keep" if failure.unknown else "does not keep"
        print_note(f"  {failure.action} {said} {failure.conjunct} ({kind})")
    real = [f for f in failures if not f.unknown]
    shown = next((f for f in real if f.safety), real[0] if real else None)
    if shown is not None:
        print_note(f"  for example, where {shown.action} happens with:")
        for name, value in shown.model:
            print_note(f"    {name} = {value}")
