"""What the prefill worker knows of prompts that begin alike."""

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.commands import Move, Share, StartPrefill
from kvfence.protocol.lots import Lot
from kvfence.protocol.transitions import PageMove
from kvfence.runtime.prefixes import Prefixes

FIRST, SECOND = (AttemptId(Incarnation("1" * 32), number) for number in (1, 2))
PROMPT = list(range(70_000, 70_011))


def test_whole_pages_are_found_until_they_go() -> None:
    """A prompt of 11 tokens has two full pages of 4; a longer prompt finds them, and after a release none."""
    prefixes = Prefixes(page_size=4)
    assert prefixes.find(FIRST, "salt", PROMPT) == ()
    prefixes.share(Share(FIRST, serial=5, first=0, num_pages=2))
    assert prefixes.find(SECOND, "salt", [*PROMPT, 7, 8]) == ((5, 2),)
    assert prefixes.num_known(SECOND, 0, Lot(6, (1, 2, 3))) == 2
    prefixes.move(Move(PageMove.RELEASE, 5, (9, 8)))
    assert prefixes.find(SECOND, "salt", PROMPT) == ()
    assert prefixes.counts["evicted_pages"] == 2


def test_without_a_salt_nothing_is_found_or_kept() -> None:
    """A prompt that may share nothing has no keys."""
    prefixes = Prefixes(page_size=4)
    prefixes.find(FIRST, "", PROMPT)
    prefixes.share(Share(FIRST, serial=5, first=0, num_pages=2))
    assert prefixes.find(SECOND, "salt", PROMPT) == ()


def test_tokens_found_and_computed_are_counted() -> None:
    """Each prompt adds up to its tokens."""
    prefixes = Prefixes(page_size=4)
    assert prefixes.start(StartPrefill(FIRST, 7, (3,), 11, (Lot(5, (9, 8)),))) == 8
    assert prefixes.counts == {"hit_tokens": 8, "miss_tokens": 3, "evicted_pages": 0}


def test_no_token_is_printed() -> None:
    """Its repr names the kind alone."""
    assert repr(Prefixes(4)) == "Prefixes(...)"
