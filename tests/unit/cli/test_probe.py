"""``kvfence probe run`` on the command line: what it says before it sends, its codes, its forms."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from tests.unit.cli.conftest import Run
from tests.unit.probe.fakes import Fake, Handler, Model, Seen, Wire, in_thread


@contextmanager
def served(model: Handler, tls: ssl.SSLContext | None = None) -> Iterator[Fake]:
    """A fake in a thread of its own: the command line runs a loop itself."""
    fake = Fake(model, tls)
    with in_thread(fake):
        yield fake


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


def test_a_server_that_nobody_runs_is_no_connection(run: Run) -> None:
    """Nothing listens: it could not tell, and does not blame the list of models."""
    outcome = run("probe", "run", "--base-url", "http://127.0.0.1:9")
    assert outcome.code == 3
    assert "no connection to http://127.0.0.1:9/v1" in outcome.err
    assert "/models" not in outcome.err


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A certificate that nobody else vouches for, and the file that does."""
    key, file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(file), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file, key)
    return tls, file


def test_a_certificate_that_nobody_vouches_for_is_named(run: Run, certificate: tuple[ssl.SSLContext, Path]) -> None:
    """It could not tell, says why and what to do, with a model named or not; nothing of HTTP was sent."""
    tls, _ = certificate
    with served(Model(), tls) as fake:
        unnamed = run("probe", "run", "--base-url", fake.url)
        named = run("probe", "run", "--base-url", fake.url, "--model", "m", "--max-requests", "20", "--json")
    assert (unnamed.code, named.code, fake.seen) == (3, 3, [])
    assert "nobody vouches for its certificate; name its authority with --ca" in unnamed.err
    document = json.loads(named.out)
    assert (document["verdict"], document["cut"]) == ("COULD NOT TELL", "gone")
    assert "nobody vouches for its certificate" in document["cut_why"]


@pytest.mark.parametrize("trust", ["--ca", "--insecure-tls"])
def test_a_named_authority_is_trusted(run: Run, certificate: tuple[ssl.SSLContext, Path], trust: str) -> None:
    """With its authority named, or nothing checked, the same server is asked."""
    tls, file = certificate
    given = [trust, str(file)] if trust == "--ca" else [trust]
    with served(Model(), tls) as fake:
        outcome = run("probe", "run", "--base-url", fake.url, "--dry-run", *given)
    assert outcome.code == 0, outcome.err
    assert [seen.method for seen in fake.seen] == ["GET"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_at_its_first_look_could_not_tell(run: Run, number: signal.Signals) -> None:
    """The list of models never comes, and whoever waits stops it: exit 3, one line, and no trace of an error."""
    never = asyncio.Event()  # held here: who waits for what nobody else holds may be collected with it

    async def silent(_: Seen, __: Wire) -> None:
        os.kill(os.getpid(), number)
        await never.wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        with served(silent) as fake:
            outcome = run("probe", "run", "--base-url", fake.url)
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.code == 3
    assert outcome.err.strip() == "stopped"
    assert [seen.method for seen in fake.seen] == ["GET"]


async def _no_list(seen: Seen, wire: Wire) -> None:
    await wire.answer(404, b"" if seen.method == "HEAD" else b"no such page")


def test_a_server_that_lists_no_model_asks_for_one(run: Run) -> None:
    """It answers, only not with a list: wrong usage, said in a line, and nothing was asked of a model."""
    with served(_no_list) as fake:
        outcome = run("probe", "run", "--base-url", fake.url)
    assert outcome.code == 2
    assert "--model: the server lists none" in outcome.err
    assert {seen.method for seen in fake.seen} == {"GET", "HEAD"}


def test_sigterm_ends_a_run_with_its_report() -> None:
    """As Ctrl-C: what came so far is judged, cut short, exit 3; the server here never answers a prompt."""
    asked = threading.Event()

    async def silent(seen: Seen, wire: Wire) -> None:
        if seen.method == "POST":
            asked.set()
            await asyncio.Event().wait()
        await wire.answer(200, {"data": [{"id": "m"}]})

    with served(silent) as fake:
        command = [sys.executable, "-m", "kvfence", "probe", "run", "--base-url", fake.url, "--json", "--yes"]
        probing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            assert asked.wait(60)
            probing.send_signal(signal.SIGTERM)
            out, err = probing.communicate(timeout=60)
        finally:
            probing.kill()
            probing.wait()
    assert probing.returncode == 3, err
    assert json.loads(out)["cut"] == "stopped"


def test_files_that_cannot_be_written_are_told_before_anything_is_sent(run: Run, tmp_path: Path) -> None:
    """All of them in one error, exit 2; the server saw no request."""
    with served(Model()) as fake:
        outcome = run(
            "probe", "run", "--base-url", fake.url, "--out", str(tmp_path), "--html", str(tmp_path / "no" / "r.html"),
            "--junit", str(tmp_path / "r.xml"),
        )  # fmt: skip
    assert outcome.code == 2
    assert "--out" in outcome.err
    assert "--html" in outcome.err
    assert "--junit" not in outcome.err
    assert fake.seen == []


def test_a_file_that_fails_at_the_end_takes_no_verdict_along(run: Run, tmp_path: Path) -> None:
    """The folder goes away in the run: the verdict and its code stand, the other file is written, stderr says which."""
    folder = tmp_path / "gone"
    folder.mkdir()
    model = Model()

    async def removing(seen: Seen, wire: Wire) -> None:
        if folder.exists():
            folder.rmdir()
        await model(seen, wire)

    with served(removing) as fake:
        outcome = run(
            "probe", "run", "--base-url", fake.url, "--max-requests", "60", "--phases", "seed", "--json",
            "--out", str(folder / "r.json"), "--html", str(tmp_path / "r.html"),
        )  # fmt: skip
    verdict = json.loads(outcome.out)["verdict"]
    assert outcome.code == {"CLEAN WITHIN BOUND": 0}.get(verdict, 3)
    assert "--out" in outcome.err
    assert "not written" in outcome.err
    assert (tmp_path / "r.html").stat().st_size


def test_a_models_name_moves_no_terminal(run: Run) -> None:
    """The server's own word is shown as its code points, and no markup in it is obeyed."""

    async def naming(_: Seen, wire: Wire) -> None:
        await wire.answer(200, {"data": [{"id": "m\x1b]0;owned\x07[red]x"}]})

    with served(naming) as fake:
        outcome = run("probe", "run", "--base-url", fake.url, "--dry-run")
    assert outcome.code == 0
    assert "\x1b" not in outcome.err
    assert "m\\u{1b}]0;owned\\u{7}[red]x" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base-url", "ftp://h"], "--base-url"),
        (["--base-url", "http://user:secret@h"], "--api-key-env"),
        (["--base-url", "http://h", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--base-url", "http://h", "--header-env", "x"], "--header-env"),
        (["--base-url", "http://h", "--max-cost", "3"], "--price-in"),
        (["--base-url", "http://h", "--max-cost", "inf", "--price-in", "1"], "--max-cost"),
        (["--base-url", "http://h", "--max-minutes", "nan"], "--max-minutes"),
        (["--base-url", "http://h", "--seed", str(1 << 64)], "--seed"),
        (["--base-url", "http://h", "--context", str(1 << 64)], "--context"),
        (["--base-url", "http://h", "--out", "same", "--html", "./same"], "named twice"),
        (["--base-url", "http://h", "--out", "n" * 300], "--out"),
        (["--base-url", "http://h", "--api-key-env", "PROPER", "--api-key-env", "ALIKE"], "--api-key-env ALIKE"),
        (["--base-url", "http://h", "--api", "grpc"], "--api grpc"),
        (["--base-url", "http://127.0.0.1:99999"], "a port is 1 to 65535"),
        (["--base-url", "http://127.0.0.1:abc"], "a port is 1 to 65535"),
        (["--base-url", "http://127.0.0.1:0"], "--base-url"),
        (["--base-url", "http://[::1"], "in brackets"),
        (["--base-url", "http://a..b"], "--base-url"),
        (["--base-url", "http://h/v1#part"], "fragment"),
        (["--base-url", "http://h /v1"], "white space"),
        (["--base-url", "http://h\n/v1"], "white space"),
        (["--base-url", "http://h", "--model", "m\udcff"], "--model"),
        (["--base-url", "http://h", "--api-key-env", "FOREIGN"], "--api-key-env FOREIGN"),
        (["--base-url", "http://h", "--api-key-env", "TRAILING"], "--api-key-env TRAILING"),
        (["--base-url", "http://h", "--header-env", "x-a=FOREIGN"], "FOREIGN"),
        (["--base-url", "http://h", "--header-env", "x-\u00e4=PROPER"], "NAME=PROPER"),
    ],
)
def test_wrong_usage_names_the_flag(run: Run, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2 and the flag; nothing that may be a secret is repeated."""
    for name, value in {
        "FOREIGN": "secret-\u00e4",
        "TRAILING": "secret\n",
        "PROPER": "secret",
        "ALIKE": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    outcome = run("probe", "run", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert "secret" not in outcome.err


def test_who_leaves_the_question_has_not_agreed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and Ctrl-D at the question: exit 3, for 1 would be a finding; nothing was sent."""

    def leave(*_: object, **__: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", leave)
    with served(Model()) as fake:
        outcome = run("probe", "run", "--base-url", fake.url)
    assert outcome.code == 3
    assert [seen.method for seen in fake.seen] == ["GET"]


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
