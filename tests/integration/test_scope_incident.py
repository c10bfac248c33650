"""The post-mortem's case in a synthetic log: exactly 155, every trap right, the prober named, the report repeatable.

The log is made by ``scope synth`` and judged through the command line, as a user does it.
"""

import csv
import json
from pathlib import Path
from typing import Any

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


@pytest.mark.timeout(300)
def test_the_post_mortem_is_told_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """155 of 200,000 are affected though traps lie all around, one model is exposed, and only the prober is named.

    When the logs have grown, --as-of gives document, page and CSV file again, byte for byte, in any time zone.
    """
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.csv"
    command, expected = synth(log, ROWS, capsys, "--prober", "ladder")
    assert run(*command, "--json", "--names", *forms("before")) == 1
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "before.json").read_bytes())
    check(report, expected)
    assert "155 responses were affected" in (tmp_path / "before.html").read_text("utf-8")
    check_csv(tmp_path / "before.csv", log.read_text("utf-8").splitlines())
    assert run("scope", "account", PROBER, "before.json") == 1
    assert "may have contained text of other customers" in capsys.readouterr().out
    grow(log)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    command.insert(3, str(tmp_path / "log2.csv"))
    assert run(*command, "--names", "--as-of", report["as_of"], *forms("again")) == 1
    for form in FORMS:
        assert (tmp_path / f"before.{form}").read_bytes() == (tmp_path / f"again.{form}").read_bytes()


FORMS = {"json": "--out", "html": "--html", "csv": "--csv"}


def forms(name: str) -> list[str]:
    """Give the options that write every form under a name."""
    return [text for form, option in FORMS.items() for text in (option, f"{name}.{form}")]


def check(report: dict[str, Any], expected: dict[str, int]) -> None:
    """Compare a report with what was planted."""
    assert {name: report[name] for name in expected} == expected
    assert expected["affected"] == 155
    counts = ("affected", "likely", "possible_victims", "excluded", "unknown", "clear")
    assert sum(report[name] for name in counts) + report["duplicates"]["same"] == ROWS
    assert {line["name"]: line["verdict"] for line in report["models"]} == {
        "glm-5.3": "EXPOSED",
        "kimi-k3": "UNREACHABLE",
        "gpt-oss-120b": "UNREACHABLE",
        "llama-4-scout": "UNREACHABLE",
    }
    tested = report["behaviour"]["tested"]
    assert [each["account"] for each in tested if any(test["adjusted"] <= 0.01 for test in each["tests"])] == [PROBER]


def check_csv(path: Path, log: list[str]) -> None:
    """Every affected request is above the limit, and stands on the line of the log that the file names."""
    with path.open(encoding="utf-8", newline="") as file:
        affected = [row for row in csv.DictReader(file) if row["class"] == "AFFECTED"]
    assert len(affected) == 155
    assert min(int(row["prompt_tokens"]) for row in affected) == 681_281
    assert all(row["request_id"] in log[int(row["line"]) - 1] for row in affected)


def grow(log: Path) -> None:
    """Add a later request to a log, and another log beside it."""
    head, *_, last = log.read_text("utf-8").splitlines()
    rest = last.split(",", 2)[2]
    with log.open("a", encoding="utf-8") as file:
        file.write(f"2026-10-01T10:00:00.000Z,req-later,{rest}\n")
    log.with_name("log2.csv").write_text(f"{head}\n2026-10-02T10:00:00.000Z,req-latest,{rest}\n", "utf-8")
