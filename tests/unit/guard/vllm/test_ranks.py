"""Blocks on a device and blocks of several ranks: hand-offs are judged there as a host's and one rank's are."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from engines import HostTensor, Request, device_tensor
from test_pair import ASKS, BAD, OWN, VICTIM, Maker, counts, pair, refusals, stale

from kvfence.core.errors import SettingsError
from kvfence.guard import digest
from kvfence.guard.vllm.worker import WorkerFence


def test_blocks_on_a_device_are_judged_as_a_hosts_are(fenced: Maker, place: str) -> None:
    """Honest hand-offs are taken; each bad one is refused, and honest ones afterwards are answered."""
    tensor = HostTensor if place == "host" else device_tensor
    prefill, decode = pair(fenced, tensor=tensor)
    assert decode.answer(OWN, prefill.run(OWN, ASKS)) == OWN
    for case in BAD:
        prefill, decode = pair(fenced, tensor=tensor)
        assert case(prefill, decode) is None, case
        found = refusals(decode)
        assert len(found) == 1, case
        assert ("digest-matches" in found) == (case is stale), case
        assert decode.answer(VICTIM, prefill.run(VICTIM, ASKS)) == VICTIM


def test_a_host_and_a_device_refuse_each_other(fenced: Maker, on_device: Callable[[], None]) -> None:
    """Their blocks have other digests, and their layouts say so, before anything is read."""
    prefill = fenced("prefill")
    on_device()
    decode = fenced("decode", tensor=device_tensor)
    assert decode.answer(OWN, prefill.run(OWN, ASKS)) is None
    assert refusals(decode) == ["layout-agrees"]


def test_a_rank_that_digests_otherwise_than_the_scheduler_compares_does_not_start(
    fenced: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every hand-off would be refused."""
    monkeypatch.setattr("kvfence.guard.vllm.facts.digest_on", lambda _device: digest.NAME)
    with pytest.raises(SettingsError, match="compares blocks by odd_sums_128, this rank by xxh3_128"):
        fenced("decode")


# ---- two ranks ----


def other_bytes_on_the_second_rank(make: Maker) -> tuple[Any, Any]:
    """What lands on the second rank is not what its prefill has sent; the first rank's is."""
    prefill, decode = pair(make, ranks=2)
    params = prefill.run(OWN, ASKS)
    prefill.kvs[1]["g0.l1"].array[2, 0, 1, 3] ^= 1
    return decode, params


def test_ranks_that_agree_hand_off(fenced: Maker) -> None:
    """One answer of both ranks, told once."""
    prefill, decode = pair(fenced, ranks=2)
    assert decode.answer(OWN, prefill.run(OWN, ASKS)) == OWN
    assert counts(decode)["decode digest-matches pass"] == 1


def test_what_one_rank_refuses_is_adopted_on_none(fenced: Maker) -> None:
    """The request fails, nobody says that its bytes agreed, and its blocks stay out of the pool."""
    decode, params = other_bytes_on_the_second_rank(fenced)
    assert decode.answer(OWN, params) is None
    found = counts(decode)
    assert "decode digest-matches pass" not in found
    assert (found["decode digest-matches refuse"], found["held"]) == (1, 3)


def test_without_the_second_ranks_comparison_it_would_be_adopted(
    fenced: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank finds nothing wrong."""
    compare = WorkerFence._holds
    monkeypatch.setattr(WorkerFence, "_holds", lambda fence, *given: fence._rank == 1 or compare(fence, *given))
    decode, params = other_bytes_on_the_second_rank(fenced)
    assert decode.answer(OWN, params) == OWN


def test_a_rank_that_is_late_is_waited_for(fenced: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is called verified on the word of the first rank while the second still compares, and then refuses."""
    done, compare = threading.Event(), WorkerFence._holds
    monkeypatch.setattr(
        WorkerFence, "_holds", lambda fence, *given: (fence._rank == 0 or done.wait(30)) and compare(fence, *given)
    )
    decode, params = other_bytes_on_the_second_rank(fenced)
    request = Request(OWN, dict(params))
    decode.begin(request)
    deadline = time.monotonic() + 30
    while not decode._arrived and time.monotonic() < deadline:
        decode.step([])
    assert "decode digest-matches pass" not in counts(decode)
    done.set()
    while request.request_id not in decode.answers and time.monotonic() < deadline:
        decode.step([])
    assert decode.answers[request.request_id] is None
    assert "decode digest-matches pass" not in counts(decode)
