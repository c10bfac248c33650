"""How text of unknown origin is made harmless: control and direction characters, lengths, spreadsheet formulas.

A log line may hold terminal escapes, HTML, Markdown or a formula. Every report takes its text from here.
"""

import unicodedata

CHARS_MAX = 2000
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_FORMULA = ("=", "+", "-", "@")


def plain(text: str, chars_max: int = CHARS_MAX) -> str:
    """Give one visible line: what cannot be seen is written as its code point, what is too long is cut."""
    if text.isascii() and text.isprintable() and len(text) <= chars_max:
        return text
    cut = text[:chars_max] + " [cut]" if len(text) > chars_max else text
    return "".join(_shown(char) for char in cut)


def _shown(char: str) -> str:
    return f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in _HIDDEN else char


def cell(text: str) -> str:
    """Give a text that no spreadsheet takes for a formula when a table is copied into one."""
    shown = plain(text)
    return "'" + shown if shown.lstrip().startswith(_FORMULA) else shown
