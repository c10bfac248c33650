"""vLLM's own schedulers, block pools and NIXL, two engines in one process, without a model: run by the engine's Python.

    KVFENCE_GUARD_KEY=... python steps.py MODEL

A pass writes into a block what its tokens are, so that what a request would be computed on can be read off its blocks.
Plays the cases that need no server, in seconds, and prints one JSON document: for each, what the request ended with.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvfence.guard.vllm import NixlConnector  # noqa: F401  fails here, and not in a worker, where a point is missing

sys.path.insert(0, str(Path(__file__).parent.parent))

from processes import free_ports

BLOCK, BLOCKS, LAYERS, HEADS, CONTENT = 32, 64, 4, 3, 128
WINDOW = 40
MODULE = "kvfence.guard.vllm"
Params = dict[str, Any]
ASKS: Params = {"do_remote_decode": True, "do_remote_prefill": False}
OWN, VICTIM = [*range(200, 270)], [*range(400, 470)]
END_S = 60


class Engine:
    """One engine's scheduler and worker, stepped by hand."""

    def __init__(self, model: str, role: str, *, guard: bool = True, groups: int = 1, **transfer: Any) -> None:
        from vllm.config import KVTransferConfig, set_current_vllm_config
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_ports(1)[0])
        config = KVTransferConfig(
            kv_connector="NixlConnector",
            kv_connector_module_path=MODULE if guard else None,
            kv_role={"prefill": "kv_producer", "decode": "kv_consumer"}[role],
            kv_buffer_device="cpu",
            kv_connector_extra_config={"num_threads": 0, "kv_lease_duration": 30},
            **transfer,
        )
        arguments = EngineArgs(model, dtype="bfloat16", max_model_len=1024, block_size=BLOCK, kv_transfer_config=config)
        self.config = arguments.create_engine_config()
        self.config.cache_config.num_gpu_blocks = BLOCKS
        self.caches = caches_of(groups)
        self.config.cache_config.kv_cache_layout = "LBHNC"
        with set_current_vllm_config(self.config):
            self.scheduler = Scheduler(
                self.config, self.caches, StructuredOutputManager(self.config), BLOCK, log_stats=True
            )
            self.worker = KVConnectorFactory.create_connector(self.config, KVConnectorRole.WORKER, self.caches)
        raw = [torch.zeros(BLOCKS, HEADS, BLOCK, CONTENT, dtype=torch.bfloat16) for _ in range(LAYERS)]
        self.kv = {f"model.layers.{g * LAYERS + n}.attn": raw[n] for g in range(groups) for n in range(LAYERS)}
        self.worker.register_kv_caches(self.kv)
        payload = self.worker.get_handshake_metadata()
        self.scheduler.get_kv_connector().set_xfer_handshake_metadata_pp_aware({(0, 0): payload})
        self.num_computed = 0
        self.finished: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()

    def add(self, name: str, tokens: list[int], params: Params | None, max_tokens: int = 1, salt: str = "") -> Any:
        """Take a request."""
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        sampling = SamplingParams(max_tokens=max_tokens, extra_args={"kv_transfer_params": params} if params else None)
        hasher = get_request_block_hasher(BLOCK, sha256)
        request = Request(name, list(tokens), sampling, None, cache_salt=salt or None, block_hasher=hasher)
        self.scheduler.add_request(request)
        return request

    def step(self) -> None:
        """Schedule, write what a pass would write, and tell the scheduler."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output = self.scheduler.schedule()
        self.worker.bind_connector_metadata(output.kv_connector_metadata)
        for request_id, number in output.num_scheduled_tokens.items():
            self._write(request_id, number)
        self.worker.start_load_kv(None)
        told = KVConnectorOutput()
        if hasattr(KVConnectorBase_V1, "get_transfer_results"):  # the guard has both
            results = self.worker.get_transfer_results(output.finished_req_ids)
            told.finished_sending, told.finished_recving = results.finished_sending, results.finished_recving
            told.failed_recving = results.failed_recving
        else:
            told.finished_sending, told.finished_recving = self.worker.get_finished(output.finished_req_ids)
        told.invalid_block_ids = self.worker.get_block_ids_with_load_errors()
        told.kv_connector_stats = self.worker.get_kv_connector_stats()
        told.kv_connector_worker_meta = self.worker.build_connector_worker_meta()
        names = list(output.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: n for n, name in enumerate(names)},
            sampled_token_ids=[[7] if self._is_complete(name) else [] for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[None] * len(names),
            kv_connector_output=told,
        )
        for each in self.scheduler.update_from_output(output, made).values():
            if each.scheduler_stats is not None and each.scheduler_stats.kv_connector_stats:
                self.counts.update(each.scheduler_stats.kv_connector_stats.get("kvfence", {}))
            for one in each.outputs:
                if one.finish_reason is not None:
                    self.finished[one.request_id] = one

    def _is_complete(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_prompt_tokens)

    def _write(self, name: str, number: int) -> None:
        request = self.scheduler.requests[name]
        self.num_computed += number
        end = request.num_computed_tokens
        for group in self.scheduler.kv_cache_manager.get_block_ids(name):
            for place in range(end - number, end):
                if not group[place // BLOCK]:
                    continue  # out of a window
                for cache in self.kv.values():
                    cache[group[place // BLOCK], :, place % BLOCK, :] = float(request.all_token_ids[place] % 256)

    def seen(self, name: str) -> list[int]:
        """Give the tokens that a request's blocks are of, while it runs."""
        request = self.scheduler.requests[name]
        (group, *_) = self.scheduler.kv_cache_manager.get_block_ids(name)
        places = range(request.num_prompt_tokens)
        return [int(self.kv["model.layers.0.attn"][group[p // BLOCK], 0, p % BLOCK, 0]) for p in places]

    @property
    def num_free(self) -> int:
        """Give how many blocks are free."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def caches_of(groups: int) -> Any:
    """Give a cache configuration; several groups share one memory, as in models with windows."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    given = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": CONTENT // 2, "dtype": torch.bfloat16}
    specs = [FullAttentionSpec(**given)] + [SlidingWindowSpec(**given, sliding_window=WINDOW)] * (groups - 1)
    names = [[f"model.layers.{g * LAYERS + n}.attn" for n in range(LAYERS)] for g in range(groups)]
    made = [KVCacheGroupSpec(name, spec) for name, spec in zip(names, specs, strict=True)]
    return KVCacheConfig(BLOCKS, [], made)


class Course:
    """Both engines, stepped together."""

    def __init__(self, model: str, **more: Any) -> None:
        self.prefill = Engine(model, "prefill", **more)
        self.decode = Engine(model, "decode", **more)
        self.number = 0

    def step(self) -> None:
        """One step of each."""
        self.prefill.step()
        self.decode.step()

    def until(self, holds: Callable[[], bool]) -> None:
        """Step until something holds."""
        deadline = time.monotonic() + END_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError("a case did not come to its end")
            self.step()

    def prefilled(self, tokens: list[int], **more: Any) -> Params:
        """Let prefill compute, and give the hand-off as JSON brings it."""
        self.number += 1
        name = f"p{self.number}"
        self.prefill.add(name, tokens, dict(ASKS), **more)
        self.until(lambda: name in self.prefill.finished)
        return json.loads(json.dumps(self.prefill.finished[name].kv_transfer_params))

    def answer(self, tokens: list[int], params: Params | None = None, **more: Any) -> str:
        """Let decode run a request of two tokens; give ``own``, ``other`` or how it ended."""
        self.number += 1
        name = f"d{self.number}"
        self.decode.add(name, tokens, dict(params) if params else None, max_tokens=2, **more)
        seen: list[int] = []

        def ended() -> bool:
            request = self.decode.scheduler.requests.get(name)
            if request is not None and request.status.name == "RUNNING" and not seen:
                seen.extend(self.decode.seen(name))
            return name in self.decode.finished

        self.until(ended)
        reason = str(self.decode.finished[name].finish_reason).lower()
        if "length" not in reason:
            return reason
        return "own" if seen == [token % 256 for token in tokens] else "other"


def expire(course: Course) -> None:
    """Let every lease end."""
    nixl = course.prefill.worker.connector_worker

    def ended() -> bool:
        nixl._reqs_to_send.update(dict.fromkeys(nixl._reqs_to_send, 0.0))
        return course.prefill.num_free == BLOCKS - 1

    course.until(ended)


def stale(course: Course) -> str:
    """The lease ends, another tenant has the blocks."""
    tokens = [*range(7, 77)]
    params = course.prefilled(tokens)
    for number in range(5):
        expire(course)
        course.prefilled([number] * (BLOCK * 20))
    return course.answer(tokens, params)


def lost(course: Course) -> str:
    """The read fails after it was posted."""
    nixl = course.decode.worker.connector_worker
    kept = nixl.nixl_wrapper.check_xfer_state
    nixl.nixl_wrapper.check_xfer_state = lambda handle: "ERR"
    try:
        return course.answer([*range(8, 78)], course.prefilled([*range(8, 78)]))
    finally:
        nixl.nixl_wrapper.check_xfer_state = kept


def in_the_open(course: Course) -> str:
    """Somebody names blocks and an address, without a seal."""
    course.prefilled([*range(9, 79)])
    params = {"do_remote_prefill": True, "remote_engine_id": course.prefill.worker.engine_id, "tp_size": 1}
    port = course.prefill.scheduler.get_kv_connector().connector_scheduler.side_channel_port
    params |= {
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "remote_request_id": "p",
        "remote_block_ids": [[1, 2, 3]],
    }
    return course.answer([*range(9, 79)], params)


def edited(course: Course) -> str:
    """A character of the seal is another."""
    params = course.prefilled([*range(10, 80)])
    text = str(params.get("kvfence", ""))
    return course.answer(
        [*range(10, 80)], {**params, "kvfence": text[:70] + ("A" if text[70:71] != "A" else "B") + text[71:]}
    )


CASES: dict[str, Callable[[Course], str]] = {
    "honest": lambda c: c.answer(OWN, c.prefilled(OWN)),
    "short prompt": lambda c: c.answer(OWN[:5], c.prefilled(OWN[:5])),
    "whole blocks": lambda c: c.answer(OWN[:64], c.prefilled(OWN[:64])),
    "own prefix": lambda c: c.answer([*OWN[:64], *range(9)], c.prefilled([*OWN[:64], *range(9)])),
    "short count": lambda c: c.answer(VICTIM[:20], c.prefilled(VICTIM[:1])),
    "forged": lambda c: c.answer([*range(1, 71)], c.prefilled(VICTIM)),
    "poisoned": lambda c: c.answer([*range(1, 71)]),
    "block too many": lambda c: c.answer([*range(2, 72)], c.prefilled([*range(2, 110)])),
    "block too few": lambda c: c.answer([*range(3, 110)], c.prefilled([*range(3, 72)])),
    "salted": lambda c: c.answer([*range(4, 74)], c.prefilled([*range(4, 74)], salt="a"), salt="b"),
    "replayed": lambda c: [c.answer([*range(5, 75)], p := c.prefilled([*range(5, 75)])), c.answer([*range(5, 75)], p)][
        1
    ],
    "stale": stale,
    "lost": lost,
    "in the open": in_the_open,
    "edited": edited,
    "after all": lambda c: c.answer([*range(6, 90)], c.prefilled([*range(6, 90)])),
}


def main(model: str) -> None:
    """Play every case, and print what came of it."""
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    groups = int(os.environ.get("STEPS_GROUPS", "1"))
    policy = os.environ.get("STEPS_POLICY", "fail")
    guard = os.environ.get("STEPS_GUARD", "1") == "1"
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_ports(1)[0]}", 0, "gloo")
        initialize_model_parallel(1, 1)
    course = Course(model, groups=groups, kv_load_failure_policy=policy, guard=guard)
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        try:
            found[name] = case(course)
        except (AssertionError, TimeoutError) as error:
            found[name] = f"{type(error).__name__}: {error}"
            break
    pool = course.decode.scheduler.kv_cache_manager.block_pool
    found["verified"] = course.decode.counts["decode digest-matches pass"]
    found["refused at prefill"] = course.prefill.counts["prefill stamp-at-adopt refuse"]
    found["blocks not free"] = sum(1 for block in pool.blocks[1:] if block.ref_cnt)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    for engine in (course.decode, course.prefill):
        engine.worker.shutdown()
        engine.scheduler.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
