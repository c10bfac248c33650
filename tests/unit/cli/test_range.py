"""``kvfence range`` before anything is started: what there is, and what is refused."""

import json

import pytest

from kvfence.cli.range_stage import in_own_flags
from kvfence.ranges.catalogue import RANGES
from tests.unit.cli.conftest import Run

NAMES = {
    *("incident", "late-write", "torn-write", "stale-reference", "misdirected", "corrupt", "truncated"),
    *("empty-200", "slow-refusal", "sound"),
}


def test_the_list_says_what_each_teaches(run: Run) -> None:
    """Every name, with what it teaches and which guards are away; as JSON, one document."""
    shown = run("range", "--list")
    listed = json.loads(run("range", "--list", "--json").out)
    assert shown.code == 0
    assert all(name in shown.out for name in NAMES)
    assert {each["name"] for each in listed} == NAMES == set(RANGES)
    assert all(each["teaches"] and each["shows"] for each in listed)


@pytest.mark.parametrize("arguments", [[], ["serve"], ["Incident"]])
def test_an_unknown_name_is_wrong_usage(run: Run, arguments: list[str]) -> None:
    """Exit code 2, and the names that there are."""
    outcome = run("range", *arguments)
    assert outcome.code == 2
    assert "incident" in outcome.err


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::"])
def test_another_host_than_loopback_is_refused(run: Run, host: str) -> None:
    """Exit code 2 before anything listens."""
    outcome = run("range", "incident", "--host", host)
    assert outcome.code == 2
    assert "loopback alone" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--port", port] for port in ("-1", "70000", "some")),
        *(["--rate", rate] for rate in ("nan", "inf", "-inf", "-1", "2")),
        *([option, "inf"] for option in ("--prefill-rate", "--decode-rate", "--refusal-after-s")),
        ["--seed", str(1 << 63)],
    ],
    ids=" ".join,
)
def test_numbers_out_of_reach_are_refused_before_anything_starts(run: Run, arguments: list[str]) -> None:
    """Exit code 2, and the option's name: neither a worker that dies of its orders nor our own fault."""
    outcome = run("range", "late-write", *arguments)
    assert outcome.code == 2
    assert arguments[0] in outcome.err


def test_advice_names_flags_that_a_practice_server_has() -> None:
    """A worker knows the flags of ``serve``; here its advice names those that are taken here."""
    advice = in_own_flags("the pool needs 9 bytes: lower --pool-tokens or --context, or free memory")
    assert advice.endswith("lower --prefill-tokens, --decode-tokens or --context, or free memory")
