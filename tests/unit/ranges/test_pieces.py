"""The practice model's tokens and what it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.ranges.pieces import BOT, END, USER, VOCAB_SIZE, PieceTokenizer, piece_bytes
from kvfence.ranges.speech import LOST_TOKENS, what_to_say

TOKENIZER = PieceTokenizer()


def said(token_ids: list[int]) -> str:
    """Give the text of ids."""
    stream = TOKENIZER.detokenizer()
    return stream.push(token_ids) + stream.flush()


def answer(*messages: str) -> str:
    """Give what a chat of these messages of a user is answered, nobody disturbing it."""
    prompt = TOKENIZER.render_chat([{"role": "user", "content": each} for each in messages])
    return said(list(what_to_say(packed(TOKENIZER.encode(prompt, 10_000))).tokens))


def packed(token_ids: list[int]) -> bytes:
    """Give tokens as they stand in pages."""
    return np.array(token_ids, "<u4").tobytes()


@given(st.text(max_size=60))
def test_text_comes_back(text: str) -> None:
    """Every text is its tokens' text, lone surrogates aside; ids are below the vocabulary's size."""
    ids = TOKENIZER.encode(text, 1000)
    assert all(0 < each < VOCAB_SIZE for each in ids)
    if not {"<|sys|>", "<|user|>", "<|bot|>", "<|end|>"} & {text[at : at + 8] for at in range(len(text))}:
        assert said(ids) == text.encode("utf-8", "replace").decode()


@given(st.integers(0, VOCAB_SIZE - 1))
def test_any_number_is_some_token(token_id: int) -> None:
    """A corrupted slot is read as some text, never as an error."""
    assert len(piece_bytes(token_id)) <= 4


def test_counting_stops_one_token_behind_the_limit() -> None:
    """A text that is too long costs no more than the limit."""
    assert len(TOKENIZER.encode("word " * 1000, 10)) == 11


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["Repeat this code exactly: KV-AX12-99"], " KV-AX12-99"),
        (["A quiet lane by the river."], "A quiet lane by the river."),
        (["First.", "Second."], "Second."),
        ([f"{'stone lamp river ' * 40}\nNow copy this code: Q-77"], " Q-77"),
        ([f"Repeat the notes: {'stone lamp river ' * 40}end"], f" {'stone lamp river ' * 40}end"),
        (["Repeat:"], "Repeat:"),
    ],
)
def test_it_repeats_what_it_is_asked_to_or_the_last_message(messages: list[str], expected: str) -> None:
    """What stands behind the request and a colon, at the end or at the beginning; else the last message."""
    assert answer(*messages) == expected


def test_a_prompt_that_lost_its_end_is_answered_with_the_last_it_holds() -> None:
    """Where other text stands in the prompt's last slots, that text is the answer."""
    own = [USER, *TOKENIZER.encode("own words " * 100, 1000), END, BOT]
    foreign = TOKENIZER.encode("somebody else's secret " * 60, 1000)
    lost = what_to_say(packed([*own[:-20], *foreign]))
    assert set(lost.tokens) <= set(foreign)
    alone = TOKENIZER.encode("one two four seven eight nine", 1000)
    assert list(what_to_say(packed([*own[:-20], *alone])).tokens)[-len(alone) :] == alone
    assert len(what_to_say(packed([*own[:-20], *alone])).tokens) == LOST_TOKENS


def test_nothing_readable_is_answered_with_nothing() -> None:
    """Slots that nobody wrote hold no text."""
    assert what_to_say(packed([0] * 32)).token(0, goes_on=True) == END


def test_a_text_that_goes_on_by_itself_goes_on() -> None:
    """Lines that repeat are gone on with, for ever, with and without a chat round them."""
    line = "- copper lantern walnut 4821\n"
    for prompt in (
        f"#000123 so so\n{line * 5}",
        TOKENIZER.render_chat([{"role": "user", "content": f"#9\n{line * 3}"}]),
    ):
        saying = what_to_say(packed(TOKENIZER.encode(prompt, 1000)))
        assert said(list(saying.tokens)).startswith(f"{line}#")
        assert saying.again


def test_what_a_sentence_names_is_said() -> None:
    """The last sentence names something; what stood behind its name before is said."""
    prompt = (
        "#000124\nBell wrote to client copper lantern walnut 4821 about the lease. The client's name, again and again: "
    )
    saying = what_to_say(packed(TOKENIZER.encode(prompt, 1000)))
    assert said(list(saying.tokens)).startswith(" copper lantern walnut 4821")
