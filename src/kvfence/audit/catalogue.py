"""All rules, loaded once and checked: ids and slugs are unique, and each rule says what a page of it needs."""

import hashlib
import importlib
import inspect
import pkgutil
import re
from functools import cache

from msgspec import Struct

from kvfence.audit import rules
from kvfence.audit.rule import Rule
from kvfence.core.errors import EvidenceError
from kvfence.core.invariant import require

HEADINGS = ("What it checks", "Why it matters", "Evidence", "How to fix", "References")


class Entry(Struct, frozen=True):
    """A rule with what its file says of it. digest: of the file's text, the version of the rule in a bundle."""

    rule: Rule
    title: str
    sections: dict[str, str]
    digest: str


@cache
def catalogue() -> tuple[Entry, ...]:
    """Load every rule, by id.

    Raises:
        InvariantBroken: an id or slug is used twice, or a heading is missing.
    """
    names = sorted(found.name for found in pkgutil.iter_modules(rules.__path__))
    entries = tuple(sorted((_entry(name) for name in names), key=lambda entry: entry.rule.id))
    for values in ([entry.rule.id for entry in entries], [entry.rule.slug for entry in entries]):
        require(len(set(values)) == len(values), "a rule's id or slug is used twice")
    return entries


def find(name: str) -> Entry:
    """Give the rule of an id or slug.

    Raises:
        EvidenceError: there is none.
    """
    for entry in catalogue():
        if name.lower() in {entry.rule.id.lower(), entry.rule.slug}:
            return entry
    raise EvidenceError(f"{name}: no such rule; `kvfence audit rules` lists them")


def _entry(name: str) -> Entry:
    module = importlib.import_module(f"{rules.__name__}.{name}")
    rule: Rule = module.RULE
    stem = f"{rule.id}_{rule.slug}".lower().replace("-", "_")
    require(stem == name, f"{name}: the file is named after another rule than {stem}")
    title, sections = read_docstring(inspect.getdoc(module) or "")
    require(tuple(sections) == HEADINGS, f"{rule.id}: its docstring has the headings {tuple(sections)}")
    return Entry(rule, title, sections, hashlib.sha256(inspect.getsource(module).encode()).hexdigest())


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Cut a rule's docstring into its first line and its sections, by heading."""
    title, _, rest = text.partition("\n")
    sections: dict[str, str] = {}
    for part in re.split(r"\n(?=\S)", rest.strip()):
        heading, _, body = part.partition(":\n")
        sections[heading] = inspect.cleandoc(body)
    return title.strip(), sections
