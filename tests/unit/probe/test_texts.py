"""Markers, texts and lengths: what is promised of chance, and what the ruler hits."""

import random
from collections.abc import Callable

import pytest

from kvfence.core.errors import SettingsError
from kvfence.probe.markers import MARKERS_MAX, draw_markers
from kvfence.probe.refusals import read_refusal
from kvfence.probe.texts import NATURAL, ONWARD, PLAIN, REPETITIVE, Ruler, Wish, compose
from kvfence.probe.words import FIRST, LISTS, SECOND, THIRD

WORDS = [word for words in (FIRST, SECOND, THIRD) for word in words.split()]


def test_markers_follow_from_the_seed_and_share_no_word() -> None:
    """The same seed draws the same, another draws others, and a word is one marker's alone."""
    tenants = ["a", "b", "c", "d"]
    drawn = draw_markers(1, tenants)
    assert drawn == draw_markers(1, tenants)
    assert drawn != draw_markers(2, tenants)
    words = [word for markers in drawn.planted.values() for marker in markers for word in marker.split()[:3]]
    assert len(words) == len(set(words)) == 3 * sum(map(len, drawn.planted.values()))
    assert all(
        marker.split()[index] in LISTS[index] for m in drawn.planted.values() for marker in m for index in range(4)
    )


def test_the_words_are_spelled_apart() -> None:
    """No word stands twice or inside another, and none is short."""
    assert len(WORDS) == len(set(WORDS)) >= 350
    assert all(len(word) >= 5 for word in WORDS)
    assert not [(a, b) for a in WORDS for b in WORDS if a != b and a in b]


def test_more_tenants_than_markers_are_refused() -> None:
    """Each tenant needs a marker of its own."""
    with pytest.raises(SettingsError, match="tenants"):
        draw_markers(1, [str(number) for number in range(MARKERS_MAX + 1)])


def counted(prompt: str, template: int) -> int:
    """Count as a tokenizer that cuts words into threes, with a template around."""
    return template + sum(-(-len(word) // 3) for word in prompt.split())


@pytest.mark.parametrize("template", [0, 31])
def test_the_ruler_hits_a_length_once_its_line_was_counted(template: int) -> None:
    """After three controls and one more count of a line, every length is met to a token."""
    ruler, markers = Ruler(), draw_markers(9, ["a"]).planted["a"]
    for shape in ((2, 0), (2, 6), (4, 0)):
        draft = ruler.draft(Wish(REPETITIVE, markers[:1], 0, 123456, shape=shape))
        ruler.learn(draft, counted(draft.prompt, template))
    for marker in markers:
        wish = Wish(REPETITIVE, (marker,), 300, 654321)
        draft = ruler.draft(wish)
        ruler.learn(draft, counted(draft.prompt, template))
        for length in (100, 299, 300, 301, 1000):
            again = ruler.draft(Wish(REPETITIVE, (marker,), length, 111111))
            assert again.measured
            assert counted(again.prompt, template) == again.expected == length


def ruler_of(counted_as: Callable[[str, int], int], seed: int) -> list[tuple[int, int]]:
    """Plan prompts of all kinds and lengths; give (planned, real) of those that count as measured."""
    rng, ruler, planted = random.Random(seed), Ruler(), draw_markers(seed, ["a", "b"]).planted
    found = []
    for number in range(200):
        tenant = rng.choice(list(planted))
        kind = REPETITIVE if number < 3 else rng.choice([REPETITIVE, ONWARD, NATURAL, PLAIN])
        markers = {NATURAL: planted[tenant], PLAIN: ()}.get(kind, (rng.choice(planted[tenant]),))
        markers = planted["a"][:1] if number < 3 else markers
        shape = ((2, 0), (2, 6), (4, 0))[number] if number < 3 else None
        length = rng.choice([56, 150, 252, 403, 512, 742, 1008, 1025, 3000])
        draft = ruler.draft(Wish(kind, markers, length, rng.randrange(1_000_000), shape=shape))
        real = counted(draft.prompt, 31)
        if draft.measured and number >= 3:
            found.append((draft.expected, real))
        ruler.learn(draft, counted_as(draft.prompt, real) if number >= 3 else real)
    return found


def test_every_plan_comes_near_what_is_counted() -> None:
    """Kinds and lengths in any order: sentences differ, so that a short prompt may miss by some words, none by far."""
    planned = [pair for seed in range(3) for pair in ruler_of(lambda _, real: real, seed)]
    assert len(planned) > 300
    assert [pair for pair in planned if abs(pair[0] - pair[1]) > max(40, 0.15 * pair[1])] == []


@pytest.mark.parametrize("share", [0.0, 0.1, 3.0])
def test_a_count_that_contradicts_the_others_teaches_nothing(share: float) -> None:
    """A server that counts one prompt in ten as one token, a tenth, or three times as much spoils no later plan."""
    lot = random.Random(4)

    def lying(_: str, real: int) -> int:
        return max(1, int(real * share)) if lot.random() < 0.1 else real

    planned = [pair for seed in range(3) for pair in ruler_of(lying, seed)]
    assert len(planned) > 300
    assert [pair for pair in planned if abs(pair[0] - pair[1]) > max(40, 0.15 * pair[1])] == []


def test_a_natural_text_is_dense_with_markers() -> None:
    """Every sentence holds one, by turns."""
    markers = draw_markers(9, ["a"]).planted["a"]
    text = compose(Wish(NATURAL, markers, 0, 1), 24, 0)
    assert all(text.count(marker) == 2 for marker in markers)


@pytest.mark.parametrize(
    ("words", "limit", "count"),
    [
        (
            "Input length (1024 tokens) exceeds the maximum allowed length (1018 tokens). Use a shorter input",
            1018,
            1024,
        ),
        ("The input (10431 tokens) is longer than the model's context length (8192 tokens).", 8192, 10431),
        (
            "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input"
            " tokens",
            2048,
            None,
        ),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8900 in the"
            " messages, 100 in the completion).",
            8192,
            8900,
        ),
        (
            "This request needs 1109 tokens (1101 prompt + 8 answer) = 70 pages of 16. context tokens: 1109 of 2048,"
            " fits; prefill pages: 69 of 64, does not fit; decode pages: 70 of 96, fits.",
            1024,
            1101,
        ),
        ("the request exceeds the available context size (4096 tokens)", 4096, None),
        ("no", None, None),
    ],
)
def test_what_engines_say_of_a_limit_is_read(words: str, limit: int | None, count: int | None) -> None:
    """SGLang's, vLLM's, OpenAI's, kvfence's and llama.cpp's own words."""
    said = read_refusal(words)
    assert (said.limit_tokens, said.counted) == (limit, count)


def test_words_that_repeat_the_prompt_are_left_out() -> None:
    """A refusal that quotes what was sent is kept without its words."""
    assert "acorn" not in read_refusal("cannot take: acorn bamboo coffee 1234", ["acorn bamboo coffee 1234"]).message


def test_what_is_learned_of_sentences_alone_does_not_need_lines() -> None:
    """A server that refused every control may count the first seeds: counts are compared all the same."""
    ruler, markers = Ruler(), draw_markers(9, ["a"]).planted["a"]
    for length in (100, 200, 150):
        draft = ruler.draft(Wish(NATURAL, markers, length, 123456))
        ruler.learn(draft, counted(draft.prompt, 3))
    draft = ruler.draft(Wish(NATURAL, markers, 180, 123456))
    assert abs(draft.expected - counted(draft.prompt, 3)) <= 9
