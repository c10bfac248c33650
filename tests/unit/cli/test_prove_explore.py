"""``kvfence prove explore``: exit codes follow the verdict, and an option without effect is refused."""

import json
import shlex

import pytest

from kvfence.cli.prove_explore import EPILOGUE
from kvfence.prove import examine
from kvfence.prove.bounds import Asked, Bounds
from kvfence.prove.engines import Engine, Finding
from kvfence.prove.search import Limits, Search
from kvfence.prove.world import World
from tests.unit.cli.conftest import Run

BROKEN = ("--requests", "1", "--faults", "stall,deadline", "--without", "quarantine-on-revoke", "--faults-max", "2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--property", "reads-own-byte"), "did you mean reads-own-bytes?"),
        (("--property", "zzz"), "one of event-refused"),
        (("--without", "?"), "the guards are fits, "),
        (("--without", "fits,count"), "--without count: the guards are fits, "),
        (("--settled", "--without", "fits"), "--settled: every guard must be on"),
        (("--as", "sglang-0.5.19", "--max-minutes", "1"), "--max-minutes does not go with --as"),
        (("--as", "sglang-0.5.19", "--without", "fits"), "--without does not go with --as"),
        (("--memory", "inf", "--max-minutes", "inf"), "--memory inf: a number; 0: never"),
        (("--html", "nowhere/page.html"), "--html nowhere/page.html: there is no folder nowhere"),
        (("--as", "sglang-0.5.19", "--html", "."), "--html .: this is a folder"),
    ],
)
def test_wrong_usage_says_what_to_write(run: Run, arguments: tuple[str, ...], says: str) -> None:
    """2, and what there is."""
    outcome = run("prove", "explore", *arguments)
    assert outcome.code == 2
    assert says in " ".join(outcome.err.split())


def test_an_interrupt_ends_a_search_and_says_what_was_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 and UNKNOWN with the states so far: what was broken off is not exhausted."""
    whole = json.loads(run("prove", "explore", "--requests", "1", "--faults", "none", "--json").out)
    deepen = Search._deepen

    def interrupted(search: Search, front: list[World]) -> list[World]:
        if search.depth == 3:
            raise KeyboardInterrupt
        return deepen(search, front)

    monkeypatch.setattr(Search, "_deepen", interrupted)
    outcome = run("prove", "explore", "--requests", "1", "--faults", "none", "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["verdict"], document["bound"]) == (3, "UNKNOWN", "an interrupt")
    assert 3 < document["states"] < whole["states"]


@pytest.mark.parametrize("command", [("matrix", "fits"), ("explore", "--as", "sglang-0.5.19")], ids=" ".join)
def test_an_interrupt_ends_all_searches_of_a_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """130: it is not taken for a limit of the search that was under way, after which the next one begins."""
    began = []

    def interrupted(search: Search, front: list[World]) -> list[World]:
        began.append(search)
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_deepen", interrupted)
    assert run("prove", *command).code == 130
    assert len(began) == 1


@pytest.mark.parametrize("wanted", ["no-stray-write", "layouts-agree"])
def test_the_exit_code_follows_the_verdict(run: Run, wanted: str) -> None:
    """1 and FAIL, with the way there, also where another property broke than the one that was asked for."""
    outcome = run("prove", "explore", *BROKEN, "--property", wanted, "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["verdict"]) == (1, "FAIL")
    assert "no-stray-write" in document["broken"]


def test_the_helps_incident_is_found(run: Run) -> None:
    """The example is run as it stands: text that nobody wrote for this request is read, within a hundred states."""
    example = shlex.split(EPILOGUE.rpartition("kvfence")[2])
    outcome = run(*example, "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, "reads-own-bytes" in document["broken"]) == (1, True)
    assert document["states"] < 100


def test_the_bounds_that_were_asked_for_are_told(run: Run) -> None:
    """What was searched stands in the document: how many clients wait at once, and how long an answer is."""
    arguments = ("--requests", "3", "--at-once", "1", "--answer", "1", "--faults", "none", "--settled", "--json")
    document = json.loads(run("prove", "explore", *arguments).out)
    assert (document["verdict"], document["bounds"]["asking_max"]) == ("PASS", 1)
    assert [asked["max_tokens"] for asked in document["bounds"]["requests"]] == [1, 1, 1]


def test_what_an_engine_lets_through_is_unknown_where_a_limit_ends_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3, and which limit: not found is said only where every state was seen."""
    monkeypatch.setattr(examine, "LIMITS", Limits(states_max=1))
    outcome = run("prove", "explore", "--as", "sglang-0.5.20")
    assert outcome.code == 3
    assert "UNKNOWN: ended by 1 states" in outcome.out
    document = json.loads(run("prove", "explore", "--as", "sglang-0.5.20", "--json").out)
    assert (document["exhausted"], document["findings"][0]["bound"]) == (False, "1 states")


def test_not_found_is_said_where_every_state_was_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """0, and the document says that it was exhausted."""
    engine = Engine("guarded", (), (Finding("none", Bounds(requests=(Asked(),)), "no-stray-write"),))
    monkeypatch.setattr("kvfence.prove.engines.ENGINES", {"guarded": engine})
    outcome = run("prove", "explore", "--as", "guarded", "--json")
    assert (outcome.code, json.loads(outcome.out)["exhausted"]) == (0, True)
