"""What each hook does at the allocator and around a pass, on both roles: named after its point (``points.py``).

The engine's allocator says which pages are granted and given back (``serials.py``); before a pass and before its
tokens leave, the tables of its requests are looked at (``tables.py``). Where the engine has them on a device, what is
asked for is copied to the host; on a graphics processor that has not run.
"""

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from kvfence.core.errors import SettingsError
from kvfence.guard.digest import BY_DEVICE
from kvfence.guard.sglang.serials import Serials
from kvfence.guard.sglang.tables import Batch, Looked, Tables
from kvfence.protocol.watched import Checked, Misread

if TYPE_CHECKING:
    from kvfence.guard.sglang.wiring import Wiring

SAID_AFTER_TABLES = 1_000
REASON = "kvfence: a page of this request was given to another"


class DeviceSlots:
    """The engine's map from tokens to slots where it is on a device: what is asked for is gathered there and copied.

    Shapes: [rows, tokens], as the engine's.
    """

    def __init__(self, slots: Any) -> None:
        self._slots, self.shape = slots, tuple(slots.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: Any) -> npt.NDArray[np.int32]:
        return _on_host(self._slots[which])


class AtPool:
    """The hooks of one process's pool."""

    def __init__(self, wiring: "Wiring") -> None:
        self._wiring = wiring
        self._pools: WeakKeyDictionary[Any, Serials] = WeakKeyDictionary()
        self._serials: Serials | None = None
        self._tables: Tables | None = None
        self._unsaid = (0, 0)

    # ---- the allocator ----

    def _of(self, allocator: Any) -> Serials | None:
        """Give an allocator's pages; None where they are on a device that has no guard."""
        if str(allocator.device).partition(":")[0] not in BY_DEVICE:
            return None
        if allocator not in self._pools:
            self._pools[allocator] = Serials(allocator.size // allocator.page_size + 2)
        return self._pools[allocator]

    def _grant(self, allocator: Any, slots: Any, besides: Any = None) -> None:
        serials = self._of(allocator)
        if serials is None or slots is None or not len(slots):
            return
        granted = _on_host(slots)
        pages = granted if allocator.page_size == 1 else np.unique(granted // allocator.page_size)
        if besides is not None:  # where a request goes on in its last page, that page is granted already
            pages = pages[~np.isin(pages, _on_host(besides) // allocator.page_size)]
        twice = serials.grant(pages)
        if twice and self._wiring.has_role:
            enforces = self._wiring.settings.enforces
            self._wiring.tally.refuse(0, "stamp-at-read", f"{twice} pages were granted twice", enforced=enforces)

    def token_grants(self, slots: Any, allocator: Any, *_given: Any, **_named: Any) -> None:
        """Slots are granted."""
        self._grant(allocator, slots)

    def paged_grants(self, slots: Any, allocator: Any, *_given: Any, **_named: Any) -> None:
        """Whole pages are granted."""
        self._grant(allocator, slots)

    def paged_extends(self, slots: Any, allocator: Any, *given: Any, **named: Any) -> None:
        """Pages are granted to requests that grow by many tokens."""
        self._grant(allocator, slots, named.get("last_loc", given[4] if len(given) > 4 else None))

    def paged_decodes(self, slots: Any, allocator: Any, *given: Any, **named: Any) -> None:
        """Pages are granted to requests that grow by a token."""
        self._grant(allocator, slots, named.get("last_loc", given[2] if len(given) > 2 else None))

    def token_frees(self, original: Any, allocator: Any, slots: Any) -> Any:
        """Slots are given back, at once or when the engine's group of them ends."""
        if allocator.free_group is not None:
            return original(allocator, slots)
        return original(allocator, self._kept(allocator, slots))

    def paged_frees(self, original: Any, allocator: Any, *pages: Any) -> Any:
        """Pages are given back."""
        return original(allocator, *(self._kept(allocator, each) for each in pages))

    def _kept(self, allocator: Any, pages: Any) -> Any:
        serials = self._of(allocator)
        if serials is None or not len(pages):
            return pages
        keep = serials.give_back(_on_host(pages))
        return pages if keep is None or not self._wiring.settings.enforces else pages[keep]

    def token_clears(self, _result: Any, allocator: Any) -> None:
        """The engine has emptied its pool."""
        serials = self._of(allocator)
        if serials is not None:
            serials.clear()

    paged_clears = token_clears

    # ---- passes ----

    def roles_made(self, _result: Any, scheduler: Any, *_given: Any, **_named: Any) -> None:
        """The pool of a role is known: from now on its passes are looked at."""
        if not self._wiring.has_role:
            mode = getattr(scheduler, "disaggregation_mode", None)
            if getattr(mode, "value", "null") != "null":
                raise SettingsError(["a role without Mooncake's KV manager is not covered by the guard"])
            return
        self._wiring.at_prefill.complete()
        self._wiring.sized(scheduler)
        allocator, rows = scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
        serials = self._pools.get(allocator)
        if serials is None:
            raise SettingsError([f"pages granted by {type(allocator).__name__} are not covered by the guard"])
        on_host = str(getattr(rows.req_to_token, "device", "cpu")) == "cpu"
        slots = np.asarray(rows.req_to_token) if on_host else DeviceSlots(rows.req_to_token)
        may_change = self._wiring.at_prefill.state is not None
        self._serials, self._tables = (
            serials,
            Tables(serials, slots, int(allocator.page_size), may_change=may_change),
        )

    @property
    def num_banned(self) -> int:
        """Give how many pages belong to nobody and never will."""
        return self._serials.num_banned if self._serials is not None else 0

    def pass_begins(self, _scheduler: Any, batch: Any, *_given: Any, **_named: Any) -> None:
        """Before a pass: what it reads and writes was granted for it."""
        if self._tables is not None:
            reqs = [req for req in batch.reqs if req.kv.req_pool_idx is not None]
            if reqs:
                self._judge(reqs, self._tables.look(_as_batch(reqs)))

    def pass_ends(self, _scheduler: Any, batch: Any, *_given: Any, **_named: Any) -> None:
        """Before a pass's tokens leave: it still is, for all whose request has not ended meanwhile."""
        if self._tables is not None:
            reqs = [req for req in batch.reqs if req.kv.req_pool_idx is not None and req.finished_reason is None]
            looked = self._tables.look_again(_as_batch(reqs)) if reqs else None
            if looked is not None:
                self._judge(reqs, looked)

    def set_aside(self, req: Any) -> None:
        """A request's pages are offered: from now on they are its own, though its first pass is far away."""
        if self._tables is not None and req is not None and req.kv.req_pool_idx is not None:
            self._tables.look(_as_batch([req]))

    def are_granted(self, pages: Any) -> bool:
        """Are these pages somebody's?"""
        return self._serials is None or bool((self._serials.serial[_on_host(pages)] > 0).all())

    def given_up(self, req: Any) -> None:
        """A request's pages are about to be given back, or its row is."""
        if self._tables is not None and req.kv.req_pool_idx is not None:
            self._tables.drop(int(req.kv.req_pool_idx))

    def table_freed(self, _rows: Any, req: Any, *_given: Any, **_named: Any) -> None:
        """A request has no table any more: what becomes of the pages in it is nobody's concern."""
        self.given_up(req)

    decode_table_freed = table_freed

    def _judge(self, reqs: list[Any], looked: Looked) -> None:
        wiring, enforces = self._wiring, self._wiring.settings.enforces
        wiring.tally.checked(looked.num_pages)
        self._tell(len(reqs), looked.num_pages)
        if not looked.bad.any() or self._serials is None:
            return
        if enforces:
            self._serials.ban(looked.pages)
        for req in (reqs[at] for at in np.flatnonzero(looked.bad)):
            room = int(req.bootstrap_room or 0)
            wiring.tally.refuse(room, "stamp-at-read", "a page was given to another", enforced=enforces)
            attempt = wiring.at_decode.attempt_of(req)
            if attempt is not None:
                wiring.watcher.see(Misread(attempt, tuple(looked.pages.tolist())))
            if enforces:
                wiring.engine.finish_abort(req, REASON)
                wiring.at_prefill.lose(room, REASON)

    def _tell(self, num_tables: int, num_pages: int) -> None:
        """Write down now and then how much was as it should be; a trace has no line for each pass."""
        self._unsaid = (self._unsaid[0] + num_tables, self._unsaid[1] + num_pages)
        if self._unsaid[0] >= SAID_AFTER_TABLES and self._wiring.at_decode.state is not None:
            self._wiring.watcher.see(Checked(*self._unsaid))
            self._unsaid = (0, 0)


def _on_host(indices: Any) -> npt.NDArray[Any]:
    """Give indices as an array; of a device's the copy waits for what the caller has queued there."""
    return np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices)


def _as_batch(reqs: list[Any]) -> Batch:
    rows = np.array([int(req.kv.req_pool_idx) for req in reqs], dtype=np.int64)
    lengths = np.array([int(req.kv.kv_allocated_len) for req in reqs], dtype=np.int64)
    return Batch([str(req.rid) for req in reqs], rows, lengths)
