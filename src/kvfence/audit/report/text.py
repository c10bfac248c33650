"""How text of unknown origin is made harmless: control and direction characters, lengths, spreadsheet formulas.

A log line may hold terminal escapes, HTML, Markdown or a formula. Every report takes its text from here.
"""

import unicodedata

from kvfence.evidence.facts import Origin

CHARS_MAX = 2000
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_FORMULA = ("=", "+", "-", "@")


def plain(text: str, chars_max: int = CHARS_MAX) -> str:
    """Give one visible line: what cannot be seen is written as its code point, what is too long is cut."""
    cut = text[:chars_max] + " [cut]" if len(text) > chars_max else text
    return "".join(_shown(char) for char in cut)


def _shown(char: str) -> str:
    return f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in _HIDDEN else char


def cell(text: str) -> str:
    """Give a text that no spreadsheet takes for a formula when a table is copied into one."""
    shown = plain(text)
    return "'" + shown if shown.lstrip().startswith(_FORMULA) else shown


def place(origin: Origin) -> str:
    """Give where a value was read: file and line or URL, and the text's own time."""
    line = f":{origin.line}" if origin.line is not None else ""
    at = f" [{origin.at}]" if origin.at else ""
    return plain(f"{origin.source}{line}{at}")


def evidence(origin: Origin) -> str:
    """Give a place and what stands there."""
    said = origin.quote or origin.key
    return cell(f"{place(origin)}: {said}" if said else place(origin))
