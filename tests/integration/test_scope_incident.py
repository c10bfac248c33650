"""The post-mortem's case in a synthetic log: exactly 155, every trap right, the prober named, the report repeatable.

The log is made by ``scope synth`` and judged through the command line, as a user does it.
"""

import csv
import json
from pathlib import Path

import pytest

from kvfence.cli.main import main
from kvfence.scope.synth.fleet import PROBER

ROWS = 200_000


def run(*arguments: str) -> int:
    """Run the command line and give its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def synth(out: Path, rows: int, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[list[str], dict[str, int]]:
    """Write a log; give the command that judges it and the counts that a right report gives."""
    assert run("scope", "synth", "--requests", str(rows), "--out", str(out), "--json", *more) == 0
    said = json.loads(capsys.readouterr().out)
    return said["report"][1:], said["expected"]


def test_the_post_mortem_is_told_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """155 of 200,000 are affected though traps lie all around, one model is exposed, and only the prober is named."""
    monkeypatch.chdir(tmp_path)
    command, expected = synth(tmp_path / "log.csv", ROWS, capsys, "--prober", "ladder")
    assert run(*command, "--json", "--html", "r.html", "--csv", "r.csv", "--out", "r.json", "--names") == 1
    report = json.loads(capsys.readouterr().out)
    assert {name: report[name] for name in expected} == expected
    assert expected["affected"] == 155
    assert report == json.loads((tmp_path / "r.json").read_bytes())
    counts = ("affected", "likely", "possible_victims", "excluded", "unknown", "clear")
    assert sum(report[name] for name in counts) + report["duplicates"]["same"] == ROWS
    assert {line["name"]: line["verdict"] for line in report["models"]} == {
        "glm-5.3": "EXPOSED",
        "kimi-k3": "UNREACHABLE",
        "gpt-oss-120b": "UNREACHABLE",
        "llama-4-scout": "UNREACHABLE",
    }
    named = [
        each["account"] for each in report["behaviour"]["tested"] if any(t["adjusted"] <= 0.01 for t in each["tests"])
    ]
    assert named == [PROBER]
    with (tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        affected = [row for row in csv.DictReader(file) if row["class"] == "AFFECTED"]
    assert len(affected) == 155
    assert min(int(row["prompt_tokens"]) for row in affected) == 681_281
    log = (tmp_path / "log.csv").read_text("utf-8").splitlines()
    assert all(row["request_id"] in log[int(row["line"]) - 1] for row in affected)
    assert "155 responses were affected" in (tmp_path / "r.html").read_text("utf-8")
    assert run("scope", "account", PROBER, "r.json") == 1
    assert "may have contained text of other customers" in capsys.readouterr().out


def test_an_earlier_report_comes_again_from_logs_that_have_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --as-of document, page and CSV file are the earlier ones byte for byte, though logs were added."""
    monkeypatch.chdir(tmp_path)
    command, _ = synth(tmp_path / "log.csv", 10_000, capsys)
    forms = [f"--{form}" if part == 0 else f"{{}}.{form}" for form in ("out", "html", "csv") for part in range(2)]
    assert run(*command, *(each.format("before") for each in forms)) == 1
    as_of = json.loads((tmp_path / "before.out").read_bytes())["as_of"]
    with (tmp_path / "log.csv").open("r+", encoding="utf-8") as log:
        last = log.readlines()[-1]
        log.write("2026-10-01T10:00:00.000Z,req-later," + last.split(",", 2)[2])
    head = (tmp_path / "log.csv").read_text("utf-8").partition("\n")[0]
    (tmp_path / "log2.csv").write_text(f"{head}\n2026-10-02T10:00:00.000Z,req-latest,{last.split(',', 2)[2]}", "utf-8")
    command.insert(3, str(tmp_path / "log2.csv"))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert run(*command, "--as-of", as_of, *(each.format("again") for each in forms)) == 1
    assert run(*command, "--out", "grown.out") == 1
    for form in ("out", "html", "csv"):
        assert (tmp_path / f"before.{form}").read_bytes() == (tmp_path / f"again.{form}").read_bytes()
    assert (tmp_path / "grown.out").read_bytes() != (tmp_path / "before.out").read_bytes()
