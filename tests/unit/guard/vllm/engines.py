"""A scheduler and a worker around one connector, step by step: as much of vLLM's own as hands blocks over.

The connector is given, vLLM's (the stand-in's) or the guard's. KV is made of the prompt: a block's bytes are a function
of its tokens, so that what an answer was computed from can be read off the blocks.
"""

import itertools
import time
from collections import Counter
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK, LAYERS, HEADS, CONTENT = 4, 2, 1, 8
SPEC = {"head_size": CONTENT, "block_size": BLOCK, "page_size_bytes": BLOCK * HEADS * CONTENT * 2}
_IDS = itertools.count(1)


class HostTensor:
    """A tensor in host memory, as a connector is given one."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.shape = array.shape

    def element_size(self) -> int:
        """Give the bytes of one item."""
        return int(self.array.itemsize)

    def stride(self) -> tuple[int, ...]:
        """Give the strides, in items."""
        return tuple(each // self.array.itemsize for each in self.array.strides)

    def data_ptr(self) -> int:
        """Give the address."""
        return int(self.array.ctypes.data)


def device_tensor(array: npt.NDArray[Any]) -> Any:
    """Give a tensor over an array: what a connector is given for blocks on a device."""
    import torch

    tensor: Any = torch.from_numpy(array.view(np.int16))
    tensor.array = array
    return tensor


class Request:
    """One request, as the scheduler has it."""

    def __init__(self, tokens: list[int], params: dict[str, Any] | None, **more: Any) -> None:
        self.request_id = f"request-{next(_IDS)}"
        self.prompt_token_ids = tokens
        self.num_prompt_tokens = len(tokens)
        self.num_computed_tokens = 0
        self.kv_transfer_params = params
        self.cache_salt = more.get("salt")
        self.lora_request = more.get("lora")
        self.mm_features = more.get("features", ())
        self.max_tokens = int(more.get("max_tokens", 1))
        self.num_tokens = len(tokens)


def config_of(role: str, engine_id: str, **more: Any) -> Any:
    """Give a configuration."""
    extra = more.get("extra", {})
    transfer = SimpleNamespace(
        kv_role={"prefill": "kv_producer", "decode": "kv_consumer"}[role],
        engine_id=engine_id,
        kv_connector_extra_config=extra,
        kv_load_failure_policy=more.get("policy", "fail"),
        enable_permute_local_kv=more.get("permute", False),
        get_from_extra_config=lambda name, default: extra.get(name, default),
    )
    return SimpleNamespace(
        kv_transfer_config=transfer,
        parallel_config=SimpleNamespace(tensor_parallel_size=more.get("ranks", 1), **more.get("parallel", {})),
        model_config=SimpleNamespace(max_model_len=more.get("context", 64)),
        speculative_config=more.get("speculative"),
        device_config=SimpleNamespace(device_type=more.get("device", "cpu")),
    )


def caches_of(num_blocks: int, groups: int = 1) -> Any:
    """Give a cache configuration: every group has its own layers over the same blocks."""
    made = [
        SimpleNamespace(layer_names=[f"g{g}.l{n}" for n in range(LAYERS)], kv_cache_spec=SimpleNamespace(**SPEC))
        for g in range(groups)
    ]
    return SimpleNamespace(kv_cache_groups=made, transfer_groups=made, num_blocks=num_blocks)


class Engine:
    """One engine of so many ``ranks``, whose caches ``tensor`` makes.

    ``answers``: by request, the tokens that its answer was computed from; None where it failed.
    """

    def __init__(self, connector: Any, role: str, num_blocks: int = 32, **more: Any) -> None:
        from vllm.v1.core.block_pool import BlockPool

        self.engine_id = f"{role}-{next(_IDS)}"
        config, caches = config_of(role, self.engine_id, **more), caches_of(num_blocks)
        self.scheduler = connector(config, SimpleNamespace(name="SCHEDULER"), caches)
        self.recomputes = config.kv_transfer_config.kv_load_failure_policy == "recompute"
        shape, tensor = (num_blocks, HEADS, BLOCK, CONTENT), more.get("tensor", HostTensor)
        self.workers, self.kvs = [], []
        for rank in range(more.get("ranks", 1)):
            config.rank = rank
            self.workers.append(connector(config, SimpleNamespace(name="WORKER"), caches))
            self.kvs.append({f"g0.l{n}": tensor(np.full(shape, 999, np.uint16)) for n in range(LAYERS)})
            self.workers[-1].register_kv_caches(self.kvs[-1])
        self.worker, self.kv = self.workers[0], self.kvs[0]
        self._arrived: Counter[str] = Counter()
        self._failed: set[str] = set()
        self.pool = BlockPool(num_blocks)
        self.scheduler.bind_gpu_block_pool(self.pool)
        self.answers: dict[str, list[int] | None] = {}
        self.cached: dict[tuple[int, ...], list[int]] = {}
        self.sent: dict[str, Any] = {}
        self.num_computed = 0
        self._tables: dict[str, list[Any]] = {}
        self._waiting: dict[str, Request] = {}
        self._ready: list[Request] = []
        self._running: list[Request] = []
        self._ended: set[str] = set()

    # ---- what a client does ----

    def run(self, tokens: list[int], params: dict[str, Any] | None = None, **more: Any) -> Any:
        """Run a request to its end; give the parameters that it ends with."""
        request = Request(tokens, dict(params) if params is not None else None, **more)
        self.begin(request)
        deadline = time.monotonic() + 30
        while request.request_id not in self.answers:
            if time.monotonic() > deadline:
                raise TimeoutError(request.request_id)
            self.step([])
        return self.sent.get(request.request_id)

    def answer(self, tokens: list[int], params: dict[str, Any] | None = None, **more: Any) -> list[int] | None:
        """Run a request; give the tokens whose KV its answer was computed from, None where it failed."""
        before = set(self.answers)
        self.run(tokens, params, **more)
        (name,) = set(self.answers) - before
        return self.answers[name]

    # ---- what the scheduler does ----

    def begin(self, request: Request) -> None:
        """Take a request: it is computed at once, or waits for what it reads."""
        self.scheduler.on_new_request(request)
        hit = self.cached.get(tuple(request.prompt_token_ids[:BLOCK]))
        external, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        number = -(-(external or len(request.prompt_token_ids)) // BLOCK)
        self._tables[request.request_id] = blocks = self.pool.get_new_blocks(number)
        given = SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: [[b.block_id for b in blocks]])
        self.scheduler.update_state_after_alloc(request, given, external)
        if external:
            self._waiting[request.request_id] = request
            self.step([])
            return
        if hit is not None:
            self._copy(hit, blocks[0].block_id)
        request.num_computed_tokens = BLOCK if hit is not None else 0
        self.step([request])

    def _copy(self, hit: list[int], block: int) -> None:
        for cache in self._caches():
            cache.array[block] = np.array(hit, np.uint16)[None, :, None]

    def _caches(self) -> list[Any]:
        return [cache for kv in self.kvs for cache in kv.values()]

    def step(self, scheduled: list[Request]) -> None:
        """Run one step: of these, of those whose read is over, and of those that go on."""
        from vllm.v1.core.sched.output import KVConnectorBlockState

        first, going = [*scheduled, *self._ready], self._running
        self._ready, self._running = [], []
        grown = [(self._grow(each),) if each.num_computed_tokens % BLOCK == 0 else None for each in going]
        every = [*first, *going]
        tables = {each.request_id: ([b.block_id for b in self._tables[each.request_id]],) for each in every}
        computed = {each.request_id: each.num_computed_tokens for each in every}
        output = SimpleNamespace(
            num_scheduled_tokens={each.request_id: each.num_tokens - each.num_computed_tokens for each in every},
            finished_req_ids=self._ended,
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=each.request_id,
                    block_ids=tables[each.request_id],
                    num_computed_tokens=each.num_computed_tokens,
                )
                for each in first
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[each.request_id for each in going],
                new_block_ids=grown,
                resumed_req_ids=set(),
                num_computed_tokens=[each.num_computed_tokens for each in going],
            ),
            kv_connector_block_state=KVConnectorBlockState(tables),
        )
        self._ended = set()
        meta = self.scheduler.build_connector_meta(output)
        for worker in self.workers:
            worker.bind_connector_metadata(meta)
        for request in every:
            self._compute(request)
        finished, lost = self._results()
        bad = set().union(*(worker.get_block_ids_with_load_errors() for worker in self.workers))
        failed = lost | self._invalid(every, computed, bad)
        for request in every:
            self._go_on(request, failed)
        reports = [made for worker in self.workers if (made := worker.build_connector_worker_meta()) is not None]
        report = reduce(lambda whole, more: whole.aggregate(more), reports) if reports else None
        self.scheduler.update_connector_output(
            SimpleNamespace(kv_connector_worker_meta=report, finished_recving=finished, failed_recving=lost)
        )
        for request_id in finished:
            self._received(self._waiting.pop(request_id), failed)

    def _grow(self, request: Request) -> list[int]:
        blocks = self.pool.get_new_blocks(1)
        self._tables[request.request_id] += blocks
        return [block.block_id for block in blocks]

    def _invalid(self, running: list[Request], computed: dict[str, int], bad: set[int]) -> set[str]:
        """Give those whom bad blocks concern, as vLLM does: a block of nothing computed is passed over.

        Where it recomputes, a running request goes on from its first bad block, in the same table.
        """
        found = set()
        counts = {**computed, **{name: len(each.prompt_token_ids) for name, each in self._waiting.items()}}
        for name, number in counts.items():
            table = [block.block_id for block in self._tables[name][: -(-number // BLOCK)]]
            places = [place for place, block in enumerate(table) if block in bad]
            request = next((each for each in running if each.request_id == name), None)
            if places and request is not None and self.recomputes:
                request.num_computed_tokens = places[0] * BLOCK
                self._running.append(request)
            if places:
                found.add(name)
        return found

    def _results(self) -> tuple[set[str], set[str]]:
        """Give the receives that are over on every rank by now, as vLLM counts them, and those that failed on any."""
        for worker in self.workers:
            worker.start_load_kv(None)
            results = worker.get_transfer_results(set())
            self._arrived.update(results.finished_recving)
            self._failed |= results.failed_recving
        finished = {name for name, number in self._arrived.items() if number == len(self.workers)}
        for name in finished:
            del self._arrived[name]
        lost = self._failed & finished
        self._failed -= lost
        return finished, lost

    def _compute(self, request: Request) -> None:
        """Write the KV of each token that is not computed yet; one that was generated is like the prompt's last."""
        tokens = request.prompt_token_ids
        self.num_computed += request.num_tokens - request.num_computed_tokens > 1
        for place in range(request.num_computed_tokens, request.num_tokens):
            block = self._tables[request.request_id][place // BLOCK]
            for cache in self._caches():
                cache.array[block.block_id][:, place % BLOCK, :] = tokens[min(place, len(tokens) - 1)]
        request.num_computed_tokens = request.num_tokens

    def _go_on(self, request: Request, failed: set[str]) -> None:
        """A pass is over: its token leaves, and is the last one or not."""
        if request in self._running:
            return
        if request.request_id in failed or request.num_tokens - len(request.prompt_token_ids) + 1 >= request.max_tokens:
            self._end(request, failed)
            return
        request.num_tokens += 1
        self._running.append(request)

    def _received(self, request: Request, failed: set[str]) -> None:
        """A read is over: the request computes its last token again, or fails, or begins anew."""
        if request.request_id not in failed:
            request.num_computed_tokens = len(request.prompt_token_ids) - 1
            self._ready.append(request)
        elif self.recomputes:
            request.kv_transfer_params = None
            self.pool.free_blocks(self._tables.pop(request.request_id))
            self.begin(request)
        else:
            self._end(request, failed)

    def _end(self, request: Request, failed: set[str]) -> None:
        blocks = self._tables[request.request_id]
        seen = [int(each) for block in blocks for each in self.kv["g0.l0"].array[block.block_id][0, :, 0]]
        length = len(request.prompt_token_ids)
        self.answers[request.request_id] = None if request.request_id in failed else seen[:length]
        if request.request_id not in failed:
            self.cached[tuple(request.prompt_token_ids[:BLOCK])] = seen[:BLOCK]
        delay, params = self.scheduler.request_finished_all_groups(request, [[b.block_id for b in blocks]])
        self.sent[request.request_id] = params
        self._ended.add(request.request_id)
        del self._tables[request.request_id]
        if not delay:
            self.pool.free_blocks(blocks)
            return
        self.leased = blocks

    def close(self) -> None:
        """End both halves."""
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()

    def expire(self) -> None:
        """A lease ends: its blocks are free."""
        self.pool.free_blocks(self.leased)
