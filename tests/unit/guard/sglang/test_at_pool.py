"""The hooks at SGLang's allocator and around its passes, with stand-ins that have arrays where SGLang has tensors."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from kvfence.core.errors import SettingsError
from kvfence.guard import settings
from kvfence.guard.sglang.wiring import Wiring
from tests.unit.guard.sglang.parts import KEY, Memory, Req, StandInEngine

SIZE = 64
Made = Callable[[np.ndarray], Any]


class Allocator:
    """SGLang's, of one size of page: what is free, and a group of what is about to be."""

    def __init__(self, wiring: Wiring, page_size: int = 1, *, twice: bool = False, made: Made = np.asarray) -> None:
        self.size, self.page_size, self.device, self.free_group = SIZE, page_size, made(np.zeros(1)).device, None
        self._made = made
        self.free_pages = np.arange(1, SIZE // page_size + 1)
        self._hook, self._twice = wiring.hook, twice

    def alloc(self, num_tokens: int) -> np.ndarray:
        """Grant whole pages; a broken one grants the last page a second time."""
        pages = self.free_pages[: -(-num_tokens // self.page_size)]
        self.free_pages = self.free_pages[len(pages) - self._twice :]
        slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)[:num_tokens]
        self._hook("token-grants" if self.page_size == 1 else "paged-grants")(self._made(slots), self, num_tokens)
        return slots

    def alloc_decode(self, last: np.ndarray) -> np.ndarray:
        """Grant one token more to each."""
        slots = last + 1
        new = slots % self.page_size == 0
        slots[new] = self.free_pages[: new.sum()] * self.page_size
        self.free_pages = self.free_pages[new.sum() :]
        self._hook("paged-decodes")(self._made(slots), self, None, None, self._made(last))
        return slots

    def free(self, slots: np.ndarray) -> None:
        """Take slots back."""
        if self.page_size == 1:
            self._hook("token-frees")(lambda _self, kept: self._take(kept), self, self._made(slots))
        else:
            pages = np.unique(slots // self.page_size)
            self._hook("paged-frees")(lambda _self, kept: self._take(kept), self, self._made(pages))

    def _take(self, pages: Any) -> None:
        taken = pages.cpu() if isinstance(pages, OnDevice) else pages
        self.free_pages = np.concatenate([self.free_pages, taken])


class Rank:
    """A decode rank's pool and its passes."""

    def __init__(self, mode: str = "enforce", page_size: int = 1, **more: Any) -> None:
        environment = {"KVFENCE_GUARD": mode, "KVFENCE_GUARD_KEY": KEY}
        self.registry = CollectorRegistry()
        self.wiring = Wiring(settings.load(environment), StandInEngine(), self.registry)
        made = more.get("made", np.asarray)
        self.allocator = Allocator(self.wiring, page_size, twice=more.get("twice", False), made=made)
        if more.get("known", True):
            self.wiring.hook("token-clears")(None, self.allocator)
        self.slots = np.zeros((8, SIZE), dtype=np.int32)
        manager = SimpleNamespace(kv_args=Memory(1).args, server_socket=None)
        server = SimpleNamespace(device="cpu", context_length=SIZE)
        self.wiring.manager_made(None, manager, None, SimpleNamespace(value="decode"), server)
        scheduler = SimpleNamespace(
            token_to_kv_pool_allocator=self.allocator, req_to_token_pool=SimpleNamespace(req_to_token=made(self.slots))
        )
        self.wiring.hook("roles-made")(None, scheduler)

    def start(self, row: int, num_tokens: int) -> Req:
        """Give a request a row and slots."""
        req = Req(row, num_tokens)
        req.kv.req_pool_idx, req.kv.kv_allocated_len = row, num_tokens
        self.slots[row, :num_tokens] = self.allocator.alloc(num_tokens)
        return req

    def begin(self, *reqs: Req) -> None:
        """A pass begins."""
        self.wiring.hook("pass-begins")(None, SimpleNamespace(reqs=list(reqs)))

    def end(self, *reqs: Req) -> None:
        """Its tokens are about to leave."""
        self.wiring.hook("pass-ends")(None, SimpleNamespace(reqs=list(reqs)), None)

    def refused(self) -> float:
        """Give how many refusals were counted."""
        labels = {"role": "decode", "guard": "stamp-at-read"}
        answers = ("refuse", "observed")
        found = [
            self.registry.get_sample_value("kvfence:guard_decisions_total", {**labels, "answer": a}) for a in answers
        ]
        return sum(each or 0.0 for each in found)


@pytest.mark.parametrize("page_size", [1, 4])
def test_honest_passes_are_left_alone_and_counted(page_size: int) -> None:
    """Requests begin, grow token by token, end, and others have their pages: nobody is refused."""
    rank = Rank(page_size=page_size)
    for turn in range(6):
        reqs = [rank.start(row, 5 + row) for row in range(3)]
        for _ in range(4):
            rank.begin(*reqs)
            rank.end(*reqs)
            for req in reqs:
                row, length = req.bootstrap_room, req.kv.kv_allocated_len
                last = rank.slots[row, length - 1 : length]
                rank.slots[row, length] = (
                    rank.allocator.alloc(1)[0] if page_size == 1 else rank.allocator.alloc_decode(last.copy())[0]
                )
                req.kv.kv_allocated_len += 1
        for req in reqs:
            if turn % 2:
                rank.wiring.at_pool.given_up(req)
            rank.allocator.free(rank.slots[req.bootstrap_room, : req.kv.kv_allocated_len])
    assert rank.refused() == 0
    assert (rank.registry.get_sample_value("kvfence:guard_pages_checked_total", {"role": "decode"}) or 0) > 100
    assert len(rank.allocator.free_pages) == SIZE // page_size


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_pass_over_a_page_of_another_ends_its_request_or_is_counted(mode: str) -> None:
    """Its page went back under it: its token does not leave; in ``observe`` it does, and is counted."""
    rank = Rank(mode)
    req, other = rank.start(0, 5), rank.start(1, 3)
    rank.begin(req, other)
    rank.allocator.free(rank.slots[0, 2:3])
    rank.end(req, other)
    assert other.to_finish is None
    assert rank.refused() == 1
    assert (req.to_finish is not None) == (mode == "enforce")


def test_a_page_granted_twice_goes_to_neither_and_never_back() -> None:
    """Both requests end, and the page stays out of the pool; the engine takes it for held."""
    rank = Rank(twice=True)
    req, other = rank.start(0, 3), rank.start(1, 3)
    rank.begin(req, other)
    assert req.to_finish is not None
    assert other.to_finish is not None
    shared = int(rank.slots[0, 2])
    rank.allocator.free(rank.slots[0, :3])
    rank.allocator.free(rank.slots[1, :3])
    assert shared not in rank.allocator.free_pages.tolist()
    assert rank.wiring.hook("decode-holds")(lambda _queue: False, None) is True


def test_a_page_of_a_transfer_that_is_given_to_another_meanwhile_ends_its_request() -> None:
    """Set aside for a transfer, given back by mistake, granted anew: the first pass after the transfer is refused."""
    rank = Rank()
    req = rank.start(0, 5)
    rank.wiring.at_pool.set_aside(req)
    rank.allocator.free(rank.slots[0, 1:2])
    rank.allocator.free_pages = np.roll(rank.allocator.free_pages, 1)
    other = rank.start(1, 1)
    assert rank.slots[1, 0] == rank.slots[0, 1]
    rank.begin(req, other)
    assert req.to_finish is not None


def test_without_setting_aside_that_request_would_be_answered() -> None:
    """At first sight alone the page is somebody's."""
    rank = Rank()
    req = rank.start(0, 5)
    rank.allocator.free(rank.slots[0, 1:2])
    rank.allocator.free_pages = np.roll(rank.allocator.free_pages, 1)
    other = rank.start(1, 1)
    rank.begin(other)
    rank.begin(req)
    assert req.to_finish is None


def test_without_the_hook_that_counts_grants_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serials are what tells: without them the same double grant passes."""
    monkeypatch.setattr("kvfence.guard.sglang.serials.Serials.ban", lambda *_: None)
    rank = Rank(twice=True)
    req, other = rank.start(0, 3), rank.start(1, 3)
    rank.begin(other)
    assert other.to_finish is None
    assert req.to_finish is None


def test_an_allocator_that_is_not_known_ends_the_start() -> None:
    """A pool whose grants are not seen has no guard, and is refused by the name of what grants them."""
    with pytest.raises(SettingsError, match="Allocator"):
        Rank(known=False)


def test_a_pool_on_a_device_without_a_digest_is_left_alone() -> None:
    """There is no guard for it; where a role wants one, its start has ended before."""
    wiring = Wiring(settings.load({"KVFENCE_GUARD_KEY": KEY}), StandInEngine(), CollectorRegistry())
    allocator: Any = Allocator(wiring)
    allocator.device = "xpu"
    assert allocator.alloc(3).tolist() == [1, 2, 3]


class OnDevice:
    """An array where SGLang has a device's tensor: nobody reads it but by a copy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.device = array, array.shape, "cuda:0"

    def cpu(self) -> np.ndarray:
        """Copy it to the host."""
        return self._array.copy()

    def __array__(self, *_: Any) -> np.ndarray:
        raise TypeError("a device's memory was read as the host's")

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, which: Any) -> "OnDevice":
        return OnDevice(self._array[which])


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pool_on_a_device_is_followed_by_copies(page_size: int) -> None:
    """Grants and tables are read off the device; a page of another's ends its request there, too."""
    rank = Rank(page_size=page_size, made=OnDevice)
    req, other = rank.start(0, 9), rank.start(1, 3)
    rank.begin(req, other)
    rank.end(req, other)
    assert req.to_finish is None
    rank.allocator.free(rank.slots[0, 4:5])
    rank.end(req, other)
    assert req.to_finish is not None
    assert other.to_finish is None
