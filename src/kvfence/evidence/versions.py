"""Which release an engine is, as far as that can be told, and whether a release is in a range.

A vendor's fork, a development build and a text that is no version are not decided here: they are ``Unknown``.
"""

import re

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from kvfence.evidence.facts import FlagFact, Known, TextFact, Unknown

_BUILD_LABEL = re.compile(r"(cpu|cuda|xpu|cu\d+|rocm[\d.]*|empty|precompiled)(\.|$)")
"""Local labels that engines themselves give a build for another device; any other label is somebody's fork."""


def release_of(version: TextFact, is_fork: FlagFact) -> Known[Version] | Unknown:
    """Give an engine's public release, or why it cannot be told."""
    if isinstance(version, Unknown):
        return Unknown(f"the version is not known: {version.reason}")
    try:
        parsed = Version(version.value)
    except InvalidVersion:
        return Unknown(f"{version.value!r} is not the name of a release")
    if isinstance(is_fork, Known) and is_fork.value:
        return Unknown(f"{version.value} is a vendor's fork: which fixes are in it cannot be told from its version")
    if parsed.local and not _BUILD_LABEL.match(parsed.local):
        return Unknown(f"{version.value} carries a local label: what is in it cannot be told from its version")
    if parsed.is_devrelease and parsed.release[:2] in {(0, 0), (0, 1)}:
        return Unknown(f"{version.value} was built from sources without a release's tag: what is in it cannot be told")
    return Known(Version(parsed.public), version.origin, version.default_of)


def at_least(release: Version, first: str) -> bool | Unknown:
    """Tell whether a release is ``first`` or later; a build made on the way to ``first`` cannot be told."""
    wanted = Version(first)
    if release.is_prerelease and release.base_version == wanted.base_version:
        return Unknown(f"{release} was built on the way to {first}: whether the change is in it cannot be told")
    return release >= wanted


def within(release: Version, versions: str) -> bool:
    """Tell whether a release is in a range such as ``>=0.24,<0.31``; an empty range holds every release."""
    return SpecifierSet(versions).contains(release, prereleases=True)
