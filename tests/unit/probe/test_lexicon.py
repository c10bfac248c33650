"""Words of markers are found however they are dressed, and nothing else is."""

import pytest

from kvfence.probe.lexicon import Form, Lexicon

LEXICON = Lexicon((("copper", "lantern", "walnut", "fox"),) * 3 + (("4821", "0007"),))
MARKER = "copper lantern walnut 4821"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("It is copper lantern walnut 4821.", Form.EXACT),
        ("COPPER Lantern walnut 4821", Form.EXACT),
        ("**copper** lan**tern** `walnut` _4821_", Form.EXACT),
        ("&#99;opper lantern walnut &#52;821", Form.EXACT),
        ("\uff43opper lantern walnut 4821", Form.EXACT),
        ("copper lan\u00adtern wal\u200bnut 4821", Form.EXACT),
        ("copper\nlantern\nwalnut\n4821", Form.EXACT),
        ("copper, or else lantern. Then walnut: no. 4821", Form.APART),
        ("cop-\nper lan tern wal nut 48 21", Form.SPLIT),
        ("copperlanternwalnut4821", Form.SPLIT),
        ("coper lanturn walnutt 4821", Form.GARBLED),
    ],
)
def test_a_dressed_marker_is_read(text: str, form: Form) -> None:
    """Each dress is seen through by the form that is for it."""
    row = [word for word in LEXICON.rows(text)[form] if word is not None]
    assert row == ["copper", "lantern", "walnut", "4821"]
    assert LEXICON.shows(text, [MARKER])


@pytest.mark.parametrize("text", ["", "a copper kettle and a lantern", "foxes 14821", "walnut lantern copper 4821"])
def test_what_is_no_marker_is_not_one(text: str) -> None:
    """Single words, longer numbers and another order are not the marker."""
    assert not LEXICON.shows(text, [MARKER])


def test_short_words_are_met_exactly_alone() -> None:
    """``fox`` is not found in ``fog`` nor in ``foxtrot`` by likeness."""
    assert set(LEXICON.rows("fog foxtrot")[Form.GARBLED]) == {None}


@pytest.mark.parametrize("text", ["\ud800copper", "\x00" * 10, "&" * 10_000, "\u202ecopper", "\U0001f600" * 100])
def test_hostile_text_is_read(text: str) -> None:
    """Lone surrogates, control characters and endless escapes raise nothing."""
    LEXICON.rows(text)
