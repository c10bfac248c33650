"""Flags are derived from the settings."""

import msgspec
import pytest

from kvfence.cli.load_settings import setting_fields
from kvfence.cli.settings_flags import FLAGS, Flags, with_settings_flags
from kvfence.core.settings import Settings
from tests.unit.cli.conftest import Run


def test_every_setting_outside_limits_has_a_flag_of_its_own() -> None:
    """A new setting gets a flag without a line here, and no two settings share one."""
    sections = msgspec.to_builtins(Settings())
    keys = {f"{section}.{name}" for section, values in sections.items() if section != "limits" for name in values}
    assert set(FLAGS) == keys
    assert len(set(FLAGS.values())) == len(FLAGS)
    assert not {"--config", "--json", "--help", "--html", "--demo", "--once", "--sim"} & set(FLAGS.values())


def test_the_flags_of_the_documents_exist() -> None:
    """The flags that the documents name are spelt as there."""
    named = {"--model", "--pool-tokens", "--memory-fraction", "--context", "--host", "--port", "--api-keys"}
    assert named | {"--max-body-bytes", "--zero-on-release", "--page-size"} <= set(FLAGS.values())


def test_the_help_shows_each_flag_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns no flag and no negation is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = " ".join(run("config", "show", "--help").out.replace("│", " ").split())
    assert [flag for flag in FLAGS.values() if f"{flag} " not in shown] == []
    assert "--no-zero-on-release <bool>" in shown


def test_every_setting_says_what_it_means() -> None:
    """`kvfence config show` has no empty line, for bounds neither."""
    assert [field.key for field in setting_fields().values() if not field.description] == []


def test_a_verb_receives_only_what_was_given() -> None:
    """The verb gets its own options, and the settings that were given, by dotted key."""
    seen: list[tuple[Flags, bool]] = []

    @with_settings_flags
    def verb(flags: Flags, demo: bool = False) -> None:
        seen.append((flags, demo))

    names = {"setting_" + key.replace(".", "_"): None for key in FLAGS}
    verb(config=None, demo=True, **{**names, "setting_pool_tokens": 64})
    assert seen == [(Flags(None, {"pool.tokens": 64}), True)]


def test_flags_reach_the_settings(run: Run) -> None:
    """A flag on the command line, and its negation, end in the setting with the flag as its source."""
    outcome = run("config", "show", "--json", "--page-size", "32", "--no-zero-on-release", "--model", "folder")
    shown = {row["key"]: (row["value"], row["source"]) for row in msgspec.json.decode(outcome.out)}
    assert shown["pool.page_size"] == (32, "--page-size")
    assert shown["pool.zero_on_release"] == (False, "--zero-on-release")
    assert shown["model.path"] == ("folder", "--model")
    assert shown["server.port"] == (8000, "default")


def test_help_shows_what_stands_in_brackets(run: Run) -> None:
    """Defaults and optional words are text and no markup."""
    shown = "".join(run("serve", "--help").out.replace("│", "").split())
    assert "[default:8000]" in shown
    assert "[requests=N]" in shown


def test_a_flag_of_the_wrong_type_is_wrong_usage(run: Run) -> None:
    """Text where a number belongs exits 2 and names the flag."""
    outcome = run("config", "show", "--page-size", "many")
    assert outcome.code == 2
    assert "--page-size" in outcome.err
    assert outcome.out == ""
