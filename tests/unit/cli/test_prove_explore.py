"""``kvfence prove explore``: exit codes follow the verdict, and an option without effect is refused."""

import json

import pytest

from kvfence.prove import examine
from kvfence.prove.bounds import Asked, Bounds
from kvfence.prove.engines import Engine, Finding
from kvfence.prove.search import Limits
from tests.unit.cli.conftest import Run

BROKEN = ("--requests", "1", "--faults", "stall,deadline", "--without", "quarantine-on-revoke", "--faults-max", "2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--property", "reads-own-byte"), "did you mean reads-own-bytes?"),
        (("--property", "zzz"), "one of event-refused"),
        (("--without", "?"), "the guards are fits, "),
        (("--settled", "--without", "fits"), "--settled: every guard must be on"),
        (("--as", "sglang-0.5.19", "--max-minutes", "1"), "--max-minutes does not go with --as"),
        (("--as", "sglang-0.5.19", "--without", "fits"), "--without does not go with --as"),
    ],
)
def test_wrong_usage_says_what_to_write(run: Run, arguments: tuple[str, ...], says: str) -> None:
    """2, and what there is."""
    outcome = run("prove", "explore", *arguments)
    assert outcome.code == 2
    assert says in " ".join(outcome.err.split())


@pytest.mark.parametrize("wanted", ["no-stray-write", "layouts-agree"])
def test_the_exit_code_follows_the_verdict(run: Run, wanted: str) -> None:
    """1 and FAIL, with the way there, also where another property broke than the one that was asked for."""
    outcome = run("prove", "explore", *BROKEN, "--property", wanted, "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["verdict"]) == (1, "FAIL")
    assert "no-stray-write" in document["broken"]


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
