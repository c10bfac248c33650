"""`kvfence audit` from the outside: streams, exit codes, formats, time."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kvfence.cli.main import main

ROOT = Path(__file__).parents[2]
LINE = (
    "[2026-08-01 00:00:00 TP0] max_total_num_tokens={}, chunked_prefill_size=8192, context_len=1048576, mem=9.99 GB\n"
)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """The two logs of the incident's pair, with their roles."""
    for role, pool in (("prefill", 681_280), ("decode", 2_040_000)):
        (tmp_path / f"{role}.log").write_text(LINE.format(pool))
    return [f"{tmp_path}/prefill.log=prefill", f"{tmp_path}/decode.log=decode"]


def kvfence(*arguments: str) -> int:
    """Run the command line in this process and give its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_check_prints_a_table_and_fails(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The incident's two logs: exit 1, the arithmetic and the flag on stdout, nothing on stderr."""
    assert kvfence("audit", "check", *pair) == 1
    out, err = capsys.readouterr()
    assert "681,274" in out
    assert "--context-length 681216" in out
    assert "prefill.log:1 [2026-08-01 00:00:00]" in out
    assert err == ""


def test_check_gives_one_json_document(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--json: exactly one document on stdout, with the same exit code inside."""
    code = kvfence("audit", "check", *pair, "--json")
    assert json.loads(capsys.readouterr().out)["exit_code"] == code == 1


def test_two_numbers_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """Pools and context without a source: the incident in one line."""
    arguments = ("--pool", "prefill=681280", "--pool", "decode=2,040,000", "--context", "1048576", "--engine", "sglang")
    assert kvfence("audit", "check", *arguments) == 1
    assert "681,274 to 1,048,569" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--context", "5"], ["--pool", "x=5"], ["--pool", "five"], ["absent.log"]])
def test_wrong_usage_says_what_to_write(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing named, a pool that is no number, a file that is not there: exit 2 and one line on stderr."""
    assert kvfence("audit", "check", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_what_cannot_be_told_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log of nothing known is no pass."""
    (tmp_path / "app.log").write_text("started\n")
    assert kvfence("audit", "check", str(tmp_path / "app.log")) == 3
    assert "UNKNOWN is not a pass" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["json", "sarif", "junit", "markdown", "html", "table"])
def test_every_format_goes_to_a_file(format: str, pair: list[str], tmp_path: Path) -> None:
    """--output writes the format there and the exit code stays."""
    path = tmp_path / "out"
    assert kvfence("audit", "check", *pair, "--format", format, "--output", str(path)) == 1
    assert "KVF0001" in path.read_text("utf-8")


def test_a_bundle_is_written_and_verified(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """check --bundle, then verify with the sources: 0; after an edit of a source: 1; of something else: 3."""
    bundle, log = str(tmp_path / "audit.zip"), pair[0].removesuffix("=prefill")
    assert kvfence("audit", "check", *pair, "--bundle", bundle) == 1
    capsys.readouterr()
    assert kvfence("audit", "verify", bundle, log, "--json") == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []
    Path(log).write_text("other\n")
    assert kvfence("audit", "verify", bundle, log) == 1
    assert kvfence("audit", "verify", log) == 3


def test_a_baseline_is_written_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fraction that changes while the pool's line stays the old one is found."""
    log, saved = tmp_path / "prefill.log", str(tmp_path / "baseline.json")
    fraction = "python -m sglang.launch_server --disaggregation-mode prefill --mem-fraction-static {}\n"
    log.write_text(fraction.format(0.85) + LINE.format(2_097_152))
    kvfence("audit", "check", str(log), "--save-baseline", saved)
    log.write_text(fraction.format(0.80) + LINE.format(2_097_152))
    capsys.readouterr()
    kvfence("audit", "check", str(log), "--baseline", saved, "--json")
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [each for each in findings if each["rule"] == "KVF0050"]
    assert (found["verdict"], "0.85 -> 0.8" in found["message"]) == ("fail", True)


def test_facts_judges_nothing(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """facts --json: one object a source, with values and where they were read."""
    assert kvfence("audit", "facts", *pair, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["sources"]
    assert (first["pool_tokens"], first["role"], second["pool_tokens"]) == (681_280, "prefill", 2_040_000)
    assert first["sources"]["pool_tokens"]["line"] == 1
    assert kvfence("audit", "facts", *pair) == 0
    assert "681280" in capsys.readouterr().out


def test_rules_explain_and_alerts_print_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """The three that need no source."""
    assert kvfence("audit", "rules", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "KVF0001"
    assert kvfence("audit", "rules") == 0
    assert "KVF0055" in capsys.readouterr().out
    assert kvfence("audit", "explain", "pool-below-context") == 0
    assert "## How to fix" in capsys.readouterr().out
    assert kvfence("audit", "alerts") == 0
    assert "KvPoolBelowContext" in capsys.readouterr().out


def test_watch_says_what_changed(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The first check is written out, a second one without a change adds nothing; it ends by itself."""
    assert kvfence("audit", "watch", *pair, "--every", "1", "--times", "2") == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines))
    assert any("KVF0001" in line and line.startswith("fail critical") for line in lines)


def test_the_first_verdict_comes_within_two_seconds(pair: list[str]) -> None:
    """A whole process from start to verdict takes less than two seconds of one core; others may use the machine too."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "kvfence", "audit", "check", *pair]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0
