"""The pages of the rules, and the vocabulary they use, are as the code has them.

``python tests/audit/test_rule_pages.py`` writes the pages anew.
"""

from pathlib import Path

from kvfence.audit.catalogue import HEADINGS, catalogue
from kvfence.audit.pages import index_page, rule_page
from kvfence.evidence.signatures import SIGNATURES

PAGES = Path(__file__).parents[2] / "docs" / "rules"
TOLD_BY_OTHER_RULES = {
    "refused_to_start": "pool and context of the same lines are judged by KVF0001",
    "input_exceeds_limit": "a refusal is right; KVF0041 looks at what followed it",
    "canary_attached": "good news: KVF0019",
    "memory_leak": "tokens lost, not owned twice: no isolation is at stake",
    "kv_checksum_skipped": "KVF0017",
}


def rendered() -> dict[str, str]:
    """Every page by its file's name."""
    pages = {f"{entry.rule.id}.md": rule_page(entry) for entry in catalogue()}
    return {**pages, "README.md": index_page(catalogue())}


def test_the_pages_are_as_the_rules_have_them() -> None:
    """A rule that changes shows in its page; no page is left of a rule that is gone."""
    there = {path.name: path.read_text("utf-8") for path in PAGES.glob("*.md")}
    assert there == rendered(), "stale: run python tests/audit/test_rule_pages.py"


def test_every_rule_has_its_five_headings_and_a_public_reference() -> None:
    """A rule rests on a public report or on the post-mortem, and says so."""
    for entry in catalogue():
        assert tuple(entry.sections) == HEADINGS
        references = entry.sections["References"]
        assert "#" in references or "ost-mortem" in references, entry.rule.id


def test_there_are_enough_rules_and_their_ids_are_never_used_again() -> None:
    """The ids in use are pinned: an id may be added, and one whose rule is gone stays out of use."""
    ids = [entry.rule.id for entry in catalogue()]
    assert ids == [f"KVF{number:04d}" for number in range(1, 56)]


def test_every_signature_is_somebodys() -> None:
    """A signature that evidence can see is judged by a rule, or it is written down why not."""
    sources = [Path(__file__).parents[2] / "src/kvfence/audit/rules" / path for path in _rule_files()]
    text = "\n".join(path.read_text("utf-8") for path in sources)
    unused = {name for name in SIGNATURES if f'"{name}"' not in text} - TOLD_BY_OTHER_RULES.keys()
    assert unused == set()


def _rule_files() -> list[str]:
    folder = Path(__file__).parents[2] / "src/kvfence/audit/rules"
    return [path.name for path in folder.glob("kvf*.py")]


if __name__ == "__main__":
    PAGES.mkdir(parents=True, exist_ok=True)
    for old in PAGES.glob("*.md"):
        old.unlink()
    for name, text in rendered().items():
        (PAGES / name).write_text(text, "utf-8")
