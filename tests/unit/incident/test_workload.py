"""What is asked follows from the seed and stays within the sizes that the incident needs."""

import pytest

from kvfence.incident import workload
from kvfence.incident.workload import draw_workload


def encode(text: str) -> list[int]:
    """Take each letter for a token."""
    return [ord(letter) for letter in text]


def test_the_same_seed_asks_the_same() -> None:
    """Nothing but the seed decides."""
    assert draw_workload(3, encode) == draw_workload(3, encode)
    assert draw_workload(3, encode) != draw_workload(4, encode)


@pytest.mark.parametrize("seed", range(1, 6))
def test_oversize_prompts_fit_all_but_the_small_pool(seed: int) -> None:
    """27 prompts fit everything but the small pool; all others fit everywhere."""
    drawn = draw_workload(seed, encode)
    asks = [ask for each in drawn.rounds for ask in each.oversize]
    assert len(asks) == workload.NUM_OVERSIZE
    for ask in asks:
        pages = -(-len(ask.token_ids) // workload.PAGE_SIZE)
        assert workload.SMALL_PAGES < pages <= workload.LARGE_PAGES
        assert len(ask.token_ids) + ask.max_tokens <= workload.CONTEXT_TOKENS
    for ask in (*drawn.controls, *(a for each in drawn.rounds for a in each.tenants)):
        assert -(-len(ask.token_ids) // workload.PAGE_SIZE) <= workload.SMALL_PAGES
        assert len(ask.token_ids) + ask.max_tokens <= workload.CONTEXT_TOKENS


def test_in_every_round_one_client_leaves_half_way() -> None:
    """The cut-off generation is there, and it is cut before its end."""
    for each in draw_workload(1, encode).rounds:
        (cut,) = [ask for ask in each.tenants if ask.cut_after]
        assert cut.cut_after < cut.max_tokens


def test_markers_are_no_words_of_the_asker() -> None:
    """No tenant's marker stands in an oversize prompt or a control, and no two tenants share one."""
    drawn = draw_workload(1, encode)
    markers = [marker.lower() for each in drawn.markers.values() for marker in each]
    assert len(set(markers)) == len(markers)
    assert not set(markers) & {word.lower() for word in workload.WORDS}


def test_for_a_single_node_prompt_and_answer_fit_the_small_pool_together() -> None:
    """The control's tenants can be served by one process whose pool is the small one."""
    drawn = draw_workload(1, encode, workload.MODEST)
    for ask in (*drawn.controls, *(a for each in drawn.rounds for a in each.tenants)):
        assert len(ask.token_ids) + ask.max_tokens <= workload.SMALL_PAGES * workload.PAGE_SIZE
