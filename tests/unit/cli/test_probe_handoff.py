"""``kvfence probe handoff`` on the command line: what it says before it sends, what it needs leave for, its codes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.probe.fakes import in_thread
from tests.unit.probe.handoff.vllm_pair import GUARDED, VllmPair, running


@contextmanager
def served(pair: VllmPair) -> Iterator[tuple[str, ...]]:
    """Serve a pair in a thread of its own; give the options that name it."""
    with in_thread(running(pair)):
        prefill, decode = pair.urls
        yield ("probe", "handoff", "--engine", "vllm", "--prefill", prefill, "--decode", decode, "--lease-s", "1")


def test_a_dry_run_says_what_a_case_may_do_and_sends_nothing(run: Run) -> None:
    """The cases, what they may do, and how much is sent stand on stderr; neither worker hears of it."""
    pair = VllmPair()
    with served(pair) as options:
        outcome = run(*options, "--all", "--allow-crash", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert "--forged-reference" in outcome.err
    assert "THE DECODE ENGINE MAY END" in outcome.err
    assert "serves nobody else" in outcome.err
    assert not pair.at_prefill.seen
    assert not pair.at_decode.seen


def test_the_list_needs_no_pair(run: Run) -> None:
    """Every case of an engine, with what it does, as a table or as JSON."""
    assert "--stale-lease" in run("probe", "handoff", "--list").out
    listed = json.loads(run("probe", "handoff", "--engine", "sglang", "--list", "--json").out)
    assert [each["case"] for each in listed] == ["refused-prompt"]


def test_a_leak_is_told_and_its_text_is_not(run: Run, tmp_path: Path) -> None:
    """One document on stdout and in a file, exit 1, and no word of an answer in it."""
    path = tmp_path / "report.json"
    with served(VllmPair()) as options:
        outcome = run(*options, "--forged-reference", "--yes", "--json", "--seed", "3", "--out", str(path))
    assert outcome.code == 1, outcome.err
    document = json.loads(outcome.out)
    assert document == json.loads(path.read_text())
    assert (document["verdict"], document["cases"][-1]["answer"]) == ("LEAK", "LEAK")
    assert document["cases"][-1]["tries"][0]["digest"]
    assert document["cases"][-1]["tries"][0]["text"] is None


def test_a_guarded_pair_ends_with_0(run: Run) -> None:
    """Every case refused or answered correctly, as a table."""
    with served(VllmPair(GUARDED)) as options:
        outcome = run(*options, "--forged-reference", "--poisoned-prefix", "--tries", "1", "--yes")
    assert outcome.code == 0, outcome.err
    assert outcome.out.rstrip().endswith("REFUSED")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--one-block-too-few", "--yes"], "add --allow-crash"),
        (["--refused-prompt", "--yes"], "not a case of this engine"),
        (["--yes"], "no case"),
        (["--short-count"], "--yes"),
        (["--short-count", "--yes", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--short-count", "--yes", "--out", "/no/such/folder/report"], "no folder"),
    ],
)
def test_what_needs_leave_or_cannot_be_is_said_before_a_request(run: Run, given: list[str], said: str) -> None:
    """Wrong usage is code 2, and neither worker hears of it."""
    pair = VllmPair()
    with served(pair) as options:
        outcome = run(*options, *given)
    assert outcome.code == 2
    assert said in outcome.err
    assert not pair.at_prefill.seen


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (["--prefill", "http://127.0.0.1:9"], "--decode"),
        (["--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9/v1"], "same worker"),
        (["--prefill", "127.0.0.1:9", "--decode", "http://127.0.0.1:8"], "--prefill: write http://HOST:PORT"),
    ],
)
def test_two_workers_are_named(run: Run, urls: list[str], said: str) -> None:
    """Both, each by its own URL."""
    outcome = run("probe", "handoff", *urls, "--all", "--yes")
    assert outcome.code == 2
    assert said in outcome.err


def test_a_pair_that_is_not_there_is_could_not_tell(run: Run) -> None:
    """Nothing was tried, and the code says that it is not enough."""
    outcome = run(
        "probe", "handoff", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--all", "--yes"
    )
    assert outcome.code == 3, outcome.err
    assert "prefill does not answer" in outcome.out
