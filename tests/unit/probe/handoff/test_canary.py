"""Canaries have the length that is asked for, and a block of any size finds a marker that fits."""

from collections.abc import Iterator

import pytest

from kvfence.probe.handoff.canary import Scribe
from kvfence.probe.handoff.errors import NotTried
from kvfence.probe.lexicon import lexicon_of
from kvfence.probe.words import LISTS
from tests.unit.probe.handoff.vllm_pair import Words

MARKERS = ("copper lantern walnut 4821", "jacket onion violet 0077")


def scribe(words: Words, markers: Iterator[str] | None = None) -> Scribe:
    """A scribe whose tokens are pieces of text."""

    async def tokenise(text: str, _: bool) -> list[int]:
        return words.tokens(text)

    return Scribe(tokenise, iter(MARKERS) if markers is None else markers)


@pytest.mark.parametrize("num_tokens", [31, 48, 66, 130, 1021])
async def test_two_of_one_length_differ_in_their_marker_alone(num_tokens: int) -> None:
    """Both have exactly the length, and begin and end alike, so that one can be read in the other's place."""
    words = Words()
    maker = scribe(words)
    one, other = await maker.canary(num_tokens), await maker.canary(num_tokens)
    assert len(one.tokens) == len(other.tokens) == num_tokens
    texts = [words.text(each.tokens) for each in (one, other)]
    assert texts[0].replace(" ".join(one.words), " ".join(other.words)) == texts[1]
    assert texts[0].endswith("\n-")


async def test_a_small_block_has_a_shorter_marker() -> None:
    """Where the whole marker would stand there once, fewer of its words do, and chance says so."""
    short, whole = await scribe(Words()).canary(20), await scribe(Words()).canary(40)
    assert (short.words, whole.words) == (("copper", "lantern"), tuple(MARKERS[0].split()))
    answer = " copper lantern\n- copper"
    assert short.stands_in(answer, lexicon_of(LISTS))
    assert short.stands_in(" **copper**-Lan\ntern", lexicon_of(LISTS))
    assert not short.stands_in(" coppar lantern", lexicon_of(LISTS))
    assert not whole.stands_in(answer, lexicon_of(LISTS))
    assert whole.chance_in(answer) < 1e-8 < short.chance_in(answer)


async def test_what_fits_nowhere_is_not_tried() -> None:
    """Too few tokens, or no marker left, is said instead of asked."""
    with pytest.raises(NotTried, match="12 tokens"):
        await scribe(Words()).canary(12)
    with pytest.raises(NotTried, match="used up"):
        await scribe(Words(), iter(())).canary(100)
