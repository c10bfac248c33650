"""Samplers: what each setting does to a choice, and that a sampler made again from what travels chooses alike."""

import pytest
import torch

from kvfence.core.request import SamplingParams, past_of
from kvfence.models.sampler import Sampler
from kvfence.models.sampling import sample

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0, -1.0]])
EOS = 4


def choose(params: SamplingParams, past: tuple[int, ...] = (), num_generated: int = 0) -> tuple[int | None, Sampler]:
    """Choose one token after a past."""
    sampler = Sampler(params, past_of(params, past, num_generated), frozenset({EOS}))
    ((token),) = sample(LOGITS, [params], [num_generated], [sampler])
    return token, sampler


def greedy(**fields) -> SamplingParams:
    """Greedy, and something more."""
    return SamplingParams(temperature=0.0, **fields)


@pytest.mark.parametrize(
    ("params", "past", "num_generated", "expected"),
    [
        (greedy(logprobs=0), (), 0, 3),
        (greedy(logit_bias=((0, 100.0),)), (), 0, 0),
        (greedy(logit_bias=((3, -100.0), (2, -100.0))), (), 0, 1),
        (greedy(presence_penalty=1.5), (3,), 1, 2),
        (greedy(presence_penalty=1.5), (3,), 0, 3),
        (greedy(presence_penalty=0.9), (3, 3, 3), 3, 3),
        (greedy(frequency_penalty=0.9), (3, 3, 3), 3, 2),
        (greedy(frequency_penalty=0.9), (3, 3, 3), 1, 3),
        (greedy(frequency_penalty=-2.0), (0, 0), 2, 0),
        (greedy(repetition_penalty=2.0), (3,), 0, 2),
        (greedy(repetition_penalty=2.0), (3,), 1, 2),
        (greedy(repetition_penalty=0.1), (1,), 0, 1),
    ],
)
def test_each_setting_moves_the_choice(params, past, num_generated, expected) -> None:
    """Biases count always, presence and frequency for the answer alone, repetition for the prompt too."""
    assert choose(params, past, num_generated)[0] == expected


def test_repetition_shrinks_negative_logits_further() -> None:
    """A penalised token never becomes likelier, whatever the sign of its logit."""
    params = greedy(repetition_penalty=1.5)
    sampler = Sampler(params, past_of(params, (0, 1, 2, 3), 0), frozenset())
    logits = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -1.2]])
    assert sample(logits, [params], [0], [sampler]) == [EOS]


def test_the_strongest_repetition_chooses_nothing_forbidden() -> None:
    """At the least penalty that the API takes, a token seen before is still not chosen where it is forbidden."""
    params = SamplingParams(repetition_penalty=0.01, min_tokens=9, temperature=1e-9, stop_token_ids=(3,))
    past = past_of(params, (3, EOS), 0)
    assert all(choose(params, (3, EOS), 0)[0] not in (3, EOS) for _ in range(3))
    sampler = Sampler(params, past, frozenset({EOS}))
    assert sample(torch.tensor([[80.0, -80.0, 1.0, 90.0, 95.0]]), [params], [0], [sampler]) == [0]


def test_no_end_before_the_least_length() -> None:
    """Below min_tokens neither the end nor a stop token is chosen; at it they may be."""
    params = greedy(logit_bias=((EOS, 50.0), (1, 40.0)), min_tokens=2, stop_token_ids=(1,))
    assert [choose(params, (0,) * count, count)[0] for count in range(3)] == [3, 3, EOS]


def test_a_cut_by_min_p_keeps_what_is_likely_enough() -> None:
    """min_p drops what is less likely than its share of the likeliest, at any temperature above 0."""
    params = [SamplingParams(min_p=0.3, seed=seed) for seed in range(300)]
    assert set(sample(LOGITS.expand(300, -1), params, [0] * 300)) == {2, 3}


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    """Neither temperature nor bias, penalty or cut changes them, and the likeliest come first."""
    params = SamplingParams(temperature=0.1, top_k=1, logit_bias=((0, 100.0),), presence_penalty=2.0, logprobs=2)
    token, sampler = choose(params, (0, 3), 2)
    raw = LOGITS[0].log_softmax(-1)
    assert token == 0
    assert sampler.logprob is not None
    assert sampler.logprob.logprob == pytest.approx(float(raw[0]))
    assert [each for each, _ in sampler.logprob.top] == [3, 2]
    assert [value for _, value in sampler.logprob.top] == pytest.approx([float(raw[3]), float(raw[2])])


def test_a_sampler_made_again_goes_on_alike() -> None:
    """One made from prompt and answer so far has the counts of the one that saw the answer being made."""
    params = SamplingParams(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.2, seed=5)
    prompt, answer = [1, 2, 2], []
    going = Sampler(params, past_of(params, prompt, 0), frozenset())
    for index in range(30):
        again = Sampler(params, past_of(params, prompt + answer, index), frozenset())
        fresh = sample(LOGITS, [params], [index], [again])
        (token,) = sample(LOGITS, [params], [index], [going])
        assert fresh == [token]
        answer.append(token)
    assert len(set(answer)) > 2


def test_rows_without_a_sampler_are_not_touched_by_those_that_have_one() -> None:
    """In one batch each row is chosen as it would be alone."""
    plain, steered = SamplingParams(seed=3), greedy(logit_bias=((0, 100.0),))
    sampler = Sampler(steered, past_of(steered, (), 0), frozenset())
    rows = LOGITS.expand(3, -1)
    together = sample(rows, [plain, steered, plain], [7, 0, 9], [None, sampler, None])
    assert together == [*sample(LOGITS, [plain], [7]), 0, *sample(LOGITS, [plain], [9])]


def test_what_travels_is_empty_where_nothing_reads_it() -> None:
    """Only what a choice reads is kept of the tokens before it, and no repr shows any."""
    tokens = (5, 5, 7, 9)
    assert past_of(SamplingParams(logprobs=3, min_tokens=4), tokens, 2) == past_of(SamplingParams(), (), 0)
    assert past_of(SamplingParams(presence_penalty=1.0), tokens, 2).answer == [7, 9]
    past = past_of(SamplingParams(repetition_penalty=1.1), tokens, 2)
    assert (past.prompt, past.answer) == ([5], [7, 9])
    assert "7" not in repr(past) + repr(SamplingParams(logit_bias=((7, 1.0),)))
