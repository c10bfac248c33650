"""Run inside SGLang's environment: the guard's hooks in the installed release, and its fence over the real Mooncake.

    python in_process.py

Prints one JSON document. No server is started and no model loaded: SGLang's own hook registry, allocator and table
of slots, and Mooncake's engine twice, on loopback.
"""

import ctypes
import json
import os
import secrets
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

HOST = "127.0.0.1"


def hooks() -> dict[str, Any]:
    """Put the guard in as SGLang does, and say which points nothing wraps."""
    os.environ.update(KVFENCE_GUARD="enforce", KVFENCE_GUARD_KEY=secrets.token_hex(32))
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kvfence.guard.settings import load
    from kvfence.guard.sglang import plugin
    from kvfence.guard.sglang.points import POINTS, found, unwrapped
    from kvfence.guard.sglang.wiring import Wiring

    global wiring
    wiring = Wiring(load(os.environ))
    plugin.put_in(wiring)
    HookRegistry.apply_hooks()
    return {"unwrapped": unwrapped([found(point) or "" for point in POINTS])}


wiring: Any = None


def allocator() -> dict[str, Any]:
    """Grant and give back with SGLang's own allocator; honest passes, then one over a page of another."""
    import torch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    pool = TokenToKVPoolAllocator(512, torch.int64, "cpu", None, need_sort=True)
    slots = torch.zeros((4, 128), dtype=torch.int32)
    scheduler = SimpleNamespace(token_to_kv_pool_allocator=pool, req_to_token_pool=SimpleNamespace(req_to_token=slots))
    raw = np.zeros(512, np.uint8)
    address = raw.ctypes.data_as(ctypes.c_void_p).value
    args = SimpleNamespace(kv_data_ptrs=[address], kv_data_lens=[512], kv_item_lens=[1], state_types=[], page_size=1)
    args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens, args.kv_cache_dtype_str = [], [], [], "none"
    manager = type("MooncakeKVManager", (SimpleNamespace,), {})(kv_args=args, server_socket=None)
    role, server = SimpleNamespace(value="decode"), SimpleNamespace(device="cpu", context_length=128)
    wiring.manager_made(None, manager, args, role, server)
    wiring.at_pool.roles_made(None, scheduler)
    reqs = []
    for row in range(3):
        taken = pool.alloc(20)
        slots[row, :20] = taken
        kv = SimpleNamespace(req_pool_idx=row, kv_allocated_len=20)
        reqs.append(SimpleNamespace(rid=f"r{row}", bootstrap_room=row, kv=kv, to_finish=None, finished_reason=None))
    batch = SimpleNamespace(reqs=reqs)
    begin, end = wiring.hook("pass-begins"), wiring.hook("pass-ends")
    for _ in range(60):
        begin(None, batch)
        end(None, batch, None)
        grown = pool.alloc(3)
        for req, slot in zip(reqs, grown, strict=True):
            slots[req.kv.req_pool_idx, req.kv.kv_allocated_len] = slot
            req.kv.kv_allocated_len += 1
    honest = [req.to_finish is None for req in reqs]
    pool.free(slots[1, 5:6].to(torch.int64))
    begin(None, batch)
    return {"honest": honest, "after": [req.to_finish is None for req in reqs], "scheduler": Scheduler.__name__}


def paged() -> dict[str, Any]:
    """Pages of four tokens: granted whole, grown by many and by one, given back; 0.5.19 needs a GPU for the growth."""
    import torch
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    pool = PagedTokenToKVPoolAllocator(64, 4, torch.int64, "cpu", None, need_sort=True)
    serials = wiring.at_pool._of(pool)

    def granted() -> list[int]:
        return np.flatnonzero(serials.serial > 0).tolist()

    whole = pool.alloc(8)
    found = {"whole": granted(), "was": sorted(set((whole // 4).tolist()))}
    try:
        lens = [torch.tensor([each]) for each in (6, 6, 16, 16)]
        more = pool.alloc_extend(*lens, whole[5:6], 10)
        found |= {"extended": granted(), "extended_was": sorted({*found["was"], *(more // 4).tolist()})}
        next_ = pool.alloc_decode(torch.tensor([17]), torch.tensor([17]), more[-1:])
        found |= {"grown": granted(), "grown_was": sorted({*found["extended_was"], *(next_ // 4).tolist()})}
    except Exception as error:  # noqa: BLE001  whatever Triton says where there is no device
        return {"needs": type(error).__name__, **found}
    pool.free(torch.cat([whole, more, next_]))
    return {**found, "left": granted(), "banned": serials.num_banned}


def fence() -> dict[str, Any]:
    """A write to an old session lands; after the session is made new, it does not, and one to the new session does."""
    os.environ["MC_FORCE_TCP"] = "1"
    from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

    from kvfence.guard.sglang.session import has_ended, rebuild

    source, target = np.full(4096, 7, np.uint8), np.zeros(4096, np.uint8)
    at = [each.ctypes.data_as(ctypes.c_void_p).value or 0 for each in (source, target)]
    sender, receiver = MooncakeTransferEngine(HOST), MooncakeTransferEngine(HOST)
    sender.batch_register([at[0]], [4096])
    manager = SimpleNamespace(
        engine=receiver,
        register_buffer_to_engine=lambda: receiver.batch_register([at[1]], [4096]),
        deregister_buffer_to_engine=lambda: receiver.batch_deregister([at[1]]),
        connection_pool={"met": 1},
    )
    manager.register_buffer_to_engine()
    old = receiver.session_id

    def write(session: str) -> tuple[int, int]:
        target[:] = 0
        status = sender.batch_transfer_sync(session, [at[0]], [at[1]], [4096])
        return status, int(target.sum())

    before = write(old)
    told: list[str] = []
    waiting = SimpleNamespace(session_id=old, bootstrap_infos=[1], _register_kv_args=lambda: told.append("told"))
    fenced = has_ended(rebuild(manager, [waiting]))
    late = write(old)
    return {
        "before": before,
        "fenced": fenced,
        "late": late,
        "after": write(receiver.session_id),
        "told": told,
        "renamed": waiting.session_id == receiver.session_id != old,
    }


def main() -> None:
    """Do all of it."""
    found = {"hooks": hooks(), "allocator": allocator(), "paged": paged(), "fence": fence()}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
