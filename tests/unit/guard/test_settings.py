"""The guard starts with a key or a written wish to do without, and with nothing half set."""

from pathlib import Path

import pytest

from kvfence.core.errors import SettingsError
from kvfence.guard.settings import Mode, load

SECRET = "x" * 32


def test_a_key_is_enough() -> None:
    """With a key the guard enforces."""
    settings = load({"KVFENCE_GUARD_KEY": SECRET})
    assert settings.mode is Mode.ENFORCE
    assert settings.key.is_secret


def test_a_key_may_stand_in_a_file(tmp_path: Path) -> None:
    """A file gives the same key as the variable, and its last line break does not count."""
    path = tmp_path / "key"
    path.write_text(SECRET + "\n")
    assert load({"KVFENCE_GUARD_KEY_FILE": str(path)}).key.id == load({"KVFENCE_GUARD_KEY": SECRET}).key.id


def test_without_a_key_it_does_not_start_unless_told() -> None:
    """No key is an error that names both ways on; the second way is written out."""
    with pytest.raises(SettingsError, match="KVFENCE_GUARD_INSECURE=1"):
        load({})
    assert not load({"KVFENCE_GUARD_INSECURE": "1"}).key.is_secret


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"KVFENCE_GUARD": "on", "KVFENCE_GUARD_KEY": SECRET}, "enforce or observe"),
        ({"KVFENCE_GUARD_KEY": "short"}, "5 characters"),
        ({"KVFENCE_GUARD_KEY_FILE": "/nowhere/key"}, "FileNotFoundError"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(environment: dict[str, str], said: str) -> None:
    """Each mistake has a sentence, and none repeats the key."""
    with pytest.raises(SettingsError, match=said) as caught:
        load(environment)
    assert "short" not in str(caught.value)


def test_an_empty_key_file_is_no_wish_to_do_without(tmp_path: Path) -> None:
    """A file that lost its secret is an error, also where doing without would be allowed."""
    path = tmp_path / "key"
    path.write_text("\n")
    with pytest.raises(SettingsError, match="empty"):
        load({"KVFENCE_GUARD_KEY_FILE": str(path), "KVFENCE_GUARD_INSECURE": "1"})


def test_all_mistakes_are_said_at_once() -> None:
    """A wrong mode and a missing key are two problems of one error."""
    with pytest.raises(SettingsError) as caught:
        load({"KVFENCE_GUARD": "on"})
    assert len(caught.value.problems) == 2
