"""Choosing tokens: greedy, and draws that depend on logits, seed and index alone."""

from collections import Counter

import pytest
import torch

from kvfence.core.request import SamplingParams
from kvfence.models.sampling import sample, uniform

LOGITS = torch.tensor([0.0, 1.0, 2.0, 3.0, -1.0])


def draws(params: SamplingParams, num_draws: int) -> Counter[int]:
    """Draw the tokens of many indexes from one distribution."""
    rows = LOGITS.expand(num_draws, -1)
    return Counter(sample(rows, [params] * num_draws, range(num_draws)))


def test_temperature_zero_is_greedy() -> None:
    """At temperature 0 the largest logit wins, whatever the other settings."""
    assert draws(SamplingParams(temperature=0.0, top_p=0.1, seed=3), 4) == {3: 4}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    """Over many indexes each token comes up as often as its probability says."""
    num_draws = 4000
    counts = draws(SamplingParams(temperature=temperature, seed=11), num_draws)
    for token, share in enumerate((LOGITS / temperature).softmax(-1).tolist()):
        assert abs(counts[token] / num_draws - share) < 0.03


def test_top_k_and_top_p_cut_the_tail() -> None:
    """top_k keeps the k largest; top_p the fewest tokens that reach the share; both together the smaller set."""
    assert set(draws(SamplingParams(top_k=2), 500)) == {2, 3}
    assert set(draws(SamplingParams(top_p=0.8), 500)) == {2, 3}
    assert set(draws(SamplingParams(top_p=0.6), 500)) == {3}
    assert set(draws(SamplingParams(top_k=4, top_p=0.99), 2000)) == {0, 1, 2, 3}
    assert set(draws(SamplingParams(top_k=99, top_p=1.0), 2000)) == {0, 1, 2, 3, 4}


def test_a_tiny_top_p_leaves_one_token() -> None:
    """However small top_p is, the likeliest token remains."""
    assert set(draws(SamplingParams(top_p=1e-9), 50)) == {3}


def test_the_draw_depends_on_seed_and_index_alone() -> None:
    """The same seed and index give the same token in any row of any batch; another seed or index another stream."""
    params = [SamplingParams(seed=seed) for seed in range(8)]
    rows = LOGITS.expand(8, -1)
    together = sample(rows, params, [5] * 8)
    assert together == [sample(LOGITS[None], [each], [5])[0] for each in params]
    assert len({uniform(seed, index) for seed in range(20) for index in range(20)}) == 400


def test_uniform_is_in_range_and_fixed() -> None:
    """The stream is part of the interface: a seed keeps its meaning between versions."""
    numbers = [uniform(1, index) for index in range(1000)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 1000 - 0.5) < 0.03
    assert uniform(1, 0) == 0.29378295756088446
