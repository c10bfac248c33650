"""Ranks of one decode: what one of them refuses is adopted on none, by the engine's own vote."""

from typing import Any

from tests.unit.guard.sglang.parts import PAGES, KVPoll, Req
from tests.unit.guard.sglang.standin import Pair


def of_two_ranks(*guards: dict[str, Any]) -> tuple[list[tuple[Pair, Req]], list[KVPoll]]:
    """A request of two ranks, on the second of which other bytes landed; what SGLang's vote makes of their polls."""
    ranks: list[tuple[Pair, Req]] = []
    polls: list[KVPoll] = []
    for rank, guard in enumerate(guards):
        pair, req = Pair(decode=guard), Req(7, 12)
        pair.offer(req)
        pair.prefill.send(req, [3, 9, 4])
        pair.prefill.begin()()
        pair.decode.memory.raw[1].reshape(PAGES, -1)[0, 0] ^= rank
        pair.decode.hear()
        ranks.append((pair, req))
        polls.append(pair.decode.queue[0][1].poll())
    for pair, _ in ranks:
        pair.decode._conclude(pair.decode.queue.pop(), min(polls))
    return ranks, polls


def test_what_one_rank_refuses_is_adopted_on_none(place: str) -> None:
    """The vote is of what each rank found of its own pages: the first found nothing wrong, and drops them too."""
    ranks, polls = of_two_ranks({}, {})
    assert polls == [KVPoll.SUCCESS, KVPoll.FAILED]
    assert not any(pair.decode.running for pair, _ in ranks)
    assert all(len(pair.decode.free) == PAGES - 3 for pair, _ in ranks)


def test_without_the_second_ranks_comparison_both_adopt() -> None:
    """It alone saw the bytes."""
    ranks, polls = of_two_ranks({}, {"without": {"receiver-polled"}})
    assert polls == [KVPoll.SUCCESS, KVPoll.SUCCESS]
    assert all(req.rid in pair.decode.running for pair, req in ranks)
