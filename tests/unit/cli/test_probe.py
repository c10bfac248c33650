"""``kvfence probe run`` on the command line: what it says before it sends, its codes, its forms."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.probe.fakes import Fake, Model


@contextmanager
def served(model: Model) -> Iterator[Fake]:
    """A fake in a thread of its own: the command line runs a loop itself."""
    fake, ready, over = Fake(model), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with fake:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield fake
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(run: Run) -> None:
    """Phases, requests, tokens and cost stand on stderr; only the list of models was asked for."""
    with served(Model()) as fake:
        outcome = run(
            "probe", "run", "--base-url", fake.url, "--dry-run", "--max-requests", "100", "--price-in", "2"
        )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "at most 100 requests" in outcome.err
    assert "that costs roughly" in outcome.err
    assert "4 tenants are simulated" in outcome.err
    assert [seen.method for seen in fake.seen] == ["GET"]


def test_a_leak_is_found_and_told_in_every_form(run: Run, tmp_path: Path) -> None:
    """One document on stdout, three files beside it, exit 1; no text of an answer stands in any of them."""
    names = {form: tmp_path / f"report.{form}" for form in ("json", "html", "xml", "sh")}
    with served(Model(hidden=250)) as fake:
        outcome = run(
            "probe", "run", "--base-url", fake.url, "--max-requests", "90", "--seed", "3", "--json", "--yes",
            "--out", str(names["json"]), "--html", str(names["html"]), "--junit", str(names["xml"]),
            "--reproducer", str(names["sh"]),
        )  # fmt: skip
    assert outcome.code == 1, outcome.err
    document = json.loads(outcome.out)
    assert document["verdict"] == "LEAK"
    assert document["requests"] <= 90
    assert document == json.loads(names["json"].read_text())
    assert all(path.stat().st_size for path in names.values())
    assert "answers with another tenant's marker" in outcome.err
    assert "- jacket" not in outcome.out


def test_a_server_that_dies_is_could_not_tell(run: Run) -> None:
    """What came before is reported, and the code says that it is not enough."""
    with served(Model(dies_from=40)) as fake:
        outcome = run("probe", "run", "--base-url", fake.url, "--max-requests", "80", "--json")
    assert outcome.code == 3, outcome.err
    assert json.loads(outcome.out)["cut"] == "gone"


def test_a_server_that_nobody_runs_asks_for_a_model(run: Run) -> None:
    """Without a list of models there is none to ask: wrong usage, said in a line."""
    outcome = run("probe", "run", "--base-url", "http://127.0.0.1:9")
    assert outcome.code == 2
    assert "--model" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base-url", "ftp://h"], "--base-url"),
        (["--base-url", "http://user:secret@h"], "--api-key-env"),
        (["--base-url", "http://h", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--base-url", "http://h", "--header-env", "x"], "--header-env"),
        (["--base-url", "http://h", "--max-cost", "3"], "--price-in"),
        (["--base-url", "http://h", "--api", "grpc"], "--api grpc"),
    ],
)
def test_wrong_usage_names_the_flag(run: Run, arguments: list[str], said: str) -> None:
    """Exit 2 and the flag; nothing that may be a secret is repeated."""
    outcome = run("probe", "run", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert "secret" not in outcome.err


def test_keys_are_tenants_and_stand_nowhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each named variable is a tenant; their values are in headers alone."""
    monkeypatch.setenv("FIRST_KEY", "sk-one")
    monkeypatch.setenv("SECOND_KEY", "sk-two")
    with served(Model()) as fake:
        outcome = run(
            "probe", "run", "--base-url", fake.url, "--api-key-env", "FIRST_KEY", "--api-key-env", "SECOND_KEY",
            "--max-requests", "70", "--phases", "seed", "--json",
        )  # fmt: skip
    assert {seen.headers.get("authorization") for seen in fake.seen} == {"Bearer sk-one", "Bearer sk-two"}
    assert "sk-" not in outcome.out + outcome.err
    assert json.loads(outcome.out)["tenants"] == ["tenant-1", "tenant-2"]
