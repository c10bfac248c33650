"""``--observe``: where it may be, and that its danger is told."""

import re

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from kvfence.cli.observing import describe_danger, require_may_observe
from kvfence.cli.serve import app
from kvfence.core.errors import SettingsError
from kvfence.core.settings import Settings
from kvfence.protocol.guards import GUARDS, OBSERVABLE
from tests.house.source import ROOT

DOCS = (ROOT / "docs" / "operations.md").read_text().partition("## Observing")[2].partition("\n## ")[0]


def at(host: str) -> Settings:
    """Settings with this host."""
    settings = Settings()
    return replace(settings, server=replace(settings.server, host=host))


def test_on_a_network_a_second_flag_is_needed() -> None:
    """Loopback may observe; another host only where that was said, too, and the refusal says how."""
    require_may_observe(at("127.0.0.1"), on_network=False)
    require_may_observe(at("0.0.0.0"), on_network=True)
    with pytest.raises(SettingsError, match="--observe-on-network"):
        require_may_observe(at("0.0.0.0"), on_network=False)


def test_help_and_start_tell_the_danger() -> None:
    """Both say that other tenants' text can reach clients; the start names each guard."""
    help_text = " ".join(re.sub(r"[│╭╰─╮╯]", " ", CliRunner().invoke(app, ["--help"]).output).split())
    assert "DANGER" in help_text
    assert "Other tenants' text can reach clients" in help_text
    told = " ".join(describe_danger())
    assert "another tenant's text" in told
    assert all(asked in told for asked in OBSERVABLE)


def test_no_setting_turns_it_on() -> None:
    """Neither a file nor a variable can: there is no such setting."""
    assert not any(
        "observe" in field for section in Settings().__struct_fields__ for field in dir(getattr(Settings(), section))
    )


def test_the_documentation_has_every_guard_in_its_table() -> None:
    """Observed where the data says so, always obeyed otherwise."""
    observed, _, obeyed = DOCS.partition("| always obeyed |")
    named = set(re.findall(r"`([a-z-]+@[a-z]+)`", observed.partition("| observed |")[2]))
    assert named == OBSERVABLE
    without = {name for name, guard in GUARDS.items() if set(guard.observable) != set(guard.places)}
    assert {name.partition("@")[0] for name in re.findall(r"`([a-z@-]+)`", obeyed.partition("\n\n")[0])} == without
