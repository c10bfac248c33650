"""``kvfence serve --engine``: what it takes, and what it refuses before anything starts."""

import json
from pathlib import Path

import pytest

from kvfence.cli.load_settings import load_settings
from kvfence.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "sglang"], "--prefill: name at least one prefill worker"),
        (["--engine", "sglang", "--prefill", "10.0.0.1", "--decode", "http://u:p@h"], "must not hold credentials"),
        (["--prefill", "http://10.0.0.1:30000"], "say which with --engine"),
        (["--engine", "vllm", "--pool-tokens", "64"], "--pool-tokens: of kvfence's own workers"),
        (["--engine", "vllm", "--demo"], "--demo: of kvfence's own workers"),
        (["--engine", "trt"], "must be one of kvfence, sglang, vllm"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit 2 and what to do, before anything starts."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert said in " ".join(shown.err.split())


def test_urls_are_read_from_flags_files_and_variables_alike(tmp_path: Path) -> None:
    """Repeated, with commas, or as a list."""
    file = tmp_path / "kvfence.toml"
    file.write_text('[engine]\nprefill = ["http://a", "http://b"]\n')
    environ = {"KVFENCE_ENGINE__DECODE": "http://c, http://d"}
    loaded = load_settings(file, environ, {"engine.kind": "vllm"}).settings.engine
    assert (loaded.prefill, loaded.decode) == (("http://a", "http://b"), ("http://c", "http://d"))
    flags = load_settings(file, environ, {"engine.decode": ["http://e", "http://f,http://g"]}).settings.engine
    assert flags.decode == ("http://e", "http://f", "http://g")


def test_urls_are_shown_as_they_are_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With commas, and as a list for machines."""
    monkeypatch.setenv("KVFENCE_ENGINE__PREFILL", "http://a,http://b")
    with pytest.raises(SystemExit):
        main(["config", "show"])
    assert "http://a, http://b" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["config", "show", "--json"])
    rows = {row["key"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert (rows["engine.prefill"], rows["engine.decode"]) == (["http://a", "http://b"], [])
