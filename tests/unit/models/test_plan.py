"""Rows become index tensors: own pages only, grouped by length, packed decode first."""

import torch

from kvfence.core.request import SamplingParams
from kvfence.models.executor import PassRow
from kvfence.models.plan import PassPlan

SIZE = 4
GREEDY = SamplingParams(temperature=0.0)


def plan_of(*rows: PassRow) -> PassPlan:
    """Plan a pass on the CPU with pages of four tokens."""
    return PassPlan(rows, SIZE, torch.device("cpu"))


def test_decode_rows_come_first_and_results_find_their_rows() -> None:
    """A mixed pass packs single tokens before chunks, shorter ones first, and remembers whose logits are wanted."""
    plan = plan_of(PassRow([7, 8, 9], 0, [5], GREEDY), PassRow([1], 9, [4, 3, 2], GREEDY), PassRow([2], 1, [6], None))
    assert plan.order == [2, 1, 0]
    assert plan.input_ids.tolist() == [[2, 1, 7, 8, 9]]
    assert plan.positions.tolist() == [[1, 9, 0, 1, 2]]
    assert plan.write_pages.tolist() == [6, 2, 5, 5, 5]
    assert plan.write_slots.tolist() == [1, 1, 0, 1, 2]
    assert plan.logit_tokens.tolist() == [1, 4]
    assert plan.sampled == [1, 0]


def test_padding_repeats_a_rows_own_page() -> None:
    """A shorter row in a group is padded with its own first page, masked, never with another row's."""
    plan = plan_of(PassRow([1], 5, [10, 11], GREEDY), PassRow([1], 9, [20, 21, 22], GREEDY))
    [group] = plan.groups
    table, mask = group.reads(0).table, group.mask(0)
    assert table.tolist() == [[10, 11, 10], [20, 21, 22]]
    assert mask.shape == (2, 1, 1, 12)
    assert mask.flatten(1).sum(1).tolist() == [6, 10]


def test_a_window_reads_only_the_pages_it_touches() -> None:
    """With a window of three tokens the table holds the last page or two, and three slots count."""
    plan = plan_of(PassRow([1], 9, [20, 21, 22], GREEDY), PassRow([1], 11, [30, 31, 32], GREEDY))
    [group] = plan.groups
    table, mask = group.reads(3).table, group.mask(3)
    assert group.reads(3).bounds.tolist() == [[3, 6], [1, 4]]
    assert table.tolist() == [[21, 22], [32, 32]]
    assert mask.flatten(1).int().tolist() == [[0, 0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0, 0, 0]]


def test_rows_of_unlike_length_are_not_padded_to_each_other() -> None:
    """One long sequence does not make a short one gather as much: groups differ by less than a factor of two."""
    rows = [PassRow([1], SIZE * pages - 1, list(range(pages)), None) for pages in (1, 2, 3, 4, 7, 8, 100)]
    widths = [group.reads(0)[0].shape for group in plan_of(*rows).groups]
    assert widths == [(1, 1), (2, 3), (2, 7), (1, 8), (1, 100)]


def test_begun_pages_are_named() -> None:
    """Pages that this pass begins and does not fill are to be zeroed first; continued and filled ones are not."""
    plan = plan_of(
        PassRow([1], 8, [1, 2, 3], None),  # begins page 3
        PassRow([1], 9, [4, 5, 6], None),  # continues page 6
        PassRow([1, 1, 1, 1], 4, [7, 8], None),  # fills page 8
        PassRow([1] * 6, 0, [9, 10], None),  # fills 9, begins 10
    )
    assert plan.fresh.tolist() == [3, 10]


def test_a_chunk_sees_its_context_and_itself_causally() -> None:
    """The mask of a chunk has one more column for each later token, and a window cuts the oldest."""
    plan = plan_of(PassRow([1, 1], 3, [1, 2], None))
    [span] = plan.spans
    assert span.mask(0).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert span.mask(2).int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert not span.is_plain_causal(0)
