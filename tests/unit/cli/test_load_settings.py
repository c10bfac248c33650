"""Settings: which source wins, what is refused, and what each value remembers."""

from pathlib import Path

import msgspec
import pytest

from kvfence.cli.load_settings import load_settings, setting_fields, variable_of
from kvfence.core.errors import SettingsError
from kvfence.core.invariant import InvariantBroken
from kvfence.core.settings import Settings


def _toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "given.toml"
    path.write_text(text, "utf-8")
    return path


def _problems(**sources: object) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load_settings(**sources)  # type: ignore[arg-type]
    return raised.value.problems


def test_without_any_source_all_is_default() -> None:
    """Nothing given: the settings are those of core/settings.py and every source is `default`."""
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """Each source overrides the ones below it, and the value says where it came from."""
    config = _toml(tmp_path, "[pool]\npage_size = 1\ntokens = 1\nprefill_tokens = 1\n")
    environ = {"KVFENCE_POOL__TOKENS": "2", "KVFENCE_POOL__PREFILL_TOKENS": "2"}
    loaded = load_settings(config, environ, {"pool.prefill_tokens": 3, "pool.decode_tokens": None})
    pool = loaded.settings.pool
    assert (pool.page_size, pool.tokens, pool.prefill_tokens, pool.decode_tokens) == (1, 2, 3, 0)
    names = ("page_size", "tokens", "prefill_tokens", "decode_tokens")
    expected = [str(config), "KVFENCE_POOL__TOKENS", "--prefill-pool-tokens", "default"]
    assert [loaded.sources[f"pool.{name}"] for name in names] == expected


def test_the_file_in_the_folder_is_read(tmp_path: Path) -> None:
    """kvfence.toml in the current folder counts without being named."""
    (tmp_path / "kvfence.toml").write_text("[server]\nport = 9000\n", "utf-8")
    loaded = load_settings()
    assert loaded.settings.server.port == 9000
    assert loaded.sources["server.port"] == "kvfence.toml"


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """One wrong value in each source gives as many problems, each with its key and source."""
    config = _toml(tmp_path, "[pool]\npage_size = 0\npagesize = 4\n[serve]\nport = 1\n")
    environ = {"KVFENCE_SERVER__PORT": "http", "KVFENCE_POOL__TOKEN": "5"}
    problems = _problems(config=config, environ=environ, flags={"model.dtype": "fp8"})
    assert problems == [
        f"{config}: unknown setting pool.pagesize; did you mean pool.page_size?",
        f"{config}: unknown setting serve.port; did you mean server.port?",
        "environment: unknown setting KVFENCE_POOL__TOKEN; did you mean KVFENCE_POOL__TOKENS?",
        f"pool.page_size ({config}): expected `int` >= 1",
        "server.port (KVFENCE_SERVER__PORT): expected `int`, got `str`",
        "model.dtype (--dtype): must be one of auto, float32, bfloat16",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pool = 3\n", "unknown setting pool; "),
        ("[pool\n", "not valid TOML"),
        ("[zzzzzzzz]\nqqqqqqq = 1\n", "`kvfence config show` lists the known ones"),
        ("[limits.deep]\nx = 1\n", "unknown setting limits.deep"),
        ("[limits]\nbatch_pages_max = 0\n", "expected `int` >= 1"),
        ("[server]\ndeadline_s = inf\n", "expected `float` <= 604800.0"),
        ("[workers]\nheartbeat_timeout_s = 0.5\n", "expected `float` >= 2.0"),
        ("[pool]\npage_size = '16'\n", "expected `int`, got `str`"),
        ("[pool]\nzero_on_release = 1\n", "expected `bool`"),
        ("[server]\napi_keys = ['secret-key']\n", "expected `str`, got `array`"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Whatever is wrong in a file is said with the file's name, and no value of a key file is repeated."""
    [problem] = _problems(config=_toml(tmp_path, text))
    assert said in problem
    assert "given.toml" in problem
    assert "secret-key" not in problem


def test_a_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    """--config must exist: a typo does not start a server with defaults."""
    [problem] = _problems(config=tmp_path / "none.toml")
    assert "none.toml: cannot be read" in problem


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A file in another encoding is a problem, not a crash."""
    path = tmp_path / "given.toml"
    path.write_bytes(b"\xff\xfe[pool]")
    [problem] = _problems(config=path)
    assert "not valid TOML" in problem


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("1", True)])
def test_the_environment_writes_booleans_as_text(text: str, value: bool) -> None:
    """A switch in the environment is true, false, 1 or 0."""
    assert load_settings(environ={"KVFENCE_POOL__ZERO_ON_RELEASE": text}).settings.pool.zero_on_release is value


def test_a_number_is_a_fine_context(tmp_path: Path) -> None:
    """`context = 4096` means what `context = "4096"` means."""
    assert load_settings(_toml(tmp_path, "[model]\ncontext = 4096\n")).settings.model.context == "4096"


def test_other_variables_are_left_alone() -> None:
    """Variables without our prefix, and ours that are no settings, are neither read nor refused."""
    assert load_settings(environ={"POOL__TOKENS": "1", "KVFENCE_TRACEBACK": "1"}).settings == Settings()


def test_a_flag_without_a_setting_is_our_bug() -> None:
    """A verb that passes a key which no setting has is stopped, not ignored."""
    with pytest.raises(InvariantBroken):
        load_settings(flags={"pool.pagesize": 1})


def test_every_setting_has_a_variable_of_its_own() -> None:
    """No two settings share an environment variable, and every setting is listed."""
    fields = setting_fields()
    assert len({variable_of(key) for key in fields}) == len(fields)
    assert len(load_settings().rows()) == len(fields)
    assert sum(len(section) for section in msgspec.to_builtins(Settings()).values()) == len(fields)
