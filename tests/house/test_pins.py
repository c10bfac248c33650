"""The pins cover what is declared, agree with it, and name no place."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS_TEXT = (ROOT / "constraints" / "all.txt").read_text("utf-8")
PIN_LINES = [line for line in PINS_TEXT.splitlines() if line and not line.startswith("#")]


def _declared() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    declared = [Requirement(text) for texts in [PROJECT["dependencies"], *extras] for text in texts]
    return [requirement for requirement in declared if requirement.name != PROJECT["name"]]  # its own extras, by name


@pytest.mark.parametrize("line", PIN_LINES)
def test_a_pin_is_one_exact_public_version(line: str) -> None:
    """A pin names a package and a version: no index, no path, no local build."""
    assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)


@pytest.mark.parametrize("requirement", _declared(), ids=lambda requirement: requirement.name)
def test_every_declared_dependency_has_a_fitting_pin(requirement: Requirement) -> None:
    """What pyproject.toml asks for is pinned to a version that it allows."""
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in PIN_LINES)}
    assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
