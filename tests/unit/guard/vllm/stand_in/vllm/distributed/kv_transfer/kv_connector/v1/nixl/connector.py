"""The connector: as much of NIXL's as carries blocks between two engines of one process, and fails open as it does."""

from types import SimpleNamespace
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics

NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class Wire:
    """Every rank's memory, by its engine's id and its number; reads are counted, can be lost, and can land late."""

    engines: ClassVar[dict[tuple[str, int], Any]] = {}
    reached: ClassVar[list[tuple[str, int]]] = []
    fails: ClassVar[bool] = False
    slow: ClassVar[bool] = False


class NixlBaseConnector(KVConnectorBase_V1):
    """Both halves of one connector; which one it is, its role says."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.engine_id = vllm_config.kv_transfer_config.engine_id
        self._caches = kv_cache_config
        self._recv: dict[str, Any] = {}
        self.connector_worker = SimpleNamespace(tp_rank=getattr(vllm_config, "rank", 0), _recving_transfers={})
        self._kv: dict[str, Any] = {}
        self._bad: set[int] = set()
        self._stats = NixlKVConnectorStats()

    # ---- scheduler ----

    def on_new_request(self, request: Any) -> None:
        """An open address is reached at once: this is where heartbeats begin."""
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill") and params.get("remote_host"):
            Wire.reached.append((params["remote_host"], params["remote_port"]))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """All of the prompt, by decode's own count."""
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            return len(request.prompt_token_ids) - num_computed_tokens, True
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Remember what to read where."""
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            if all(name in params for name in NEEDED) and num_external_tokens:
                self._recv[request.request_id] = SimpleNamespace(
                    local_block_ids=blocks.get_unhashed_block_ids_all_groups(), params=params
                )
            params["do_remote_prefill"] = False

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Give the worker its reads."""
        meta = SimpleNamespace(reqs_to_recv=self._recv)
        self._recv = {}
        return meta

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Give a hand-off where one was asked for."""
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_decode"):
            return False, None
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": block_ids,
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "remote_num_tokens": request.num_computed_tokens,
        }

    def update_connector_output(self, connector_output: Any) -> None:
        """Nothing that a test looks at."""

    # ---- worker ----

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Be reachable."""
        self._kv = kv_caches
        Wire.engines[self.engine_id, self.connector_worker.tp_rank] = kv_caches

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Every read that was posted has landed, or failed."""
        done = set() if Wire.slow else set(self.connector_worker._recving_transfers)
        for name in done:
            del self.connector_worker._recving_transfers[name]
        failed = done if Wire.fails else set()
        return SimpleNamespace(finished_sending=set(), finished_recving=done, failed_recving=set(failed))

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        """As above."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending, results.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that did not come."""
        bad, self._bad = self._bad, set()
        return bad

    def get_kv_connector_stats(self) -> Any:
        """Give what was counted."""
        stats, self._stats = self._stats, NixlKVConnectorStats()
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> Any:
        """Give counts."""
        return NixlKVConnectorStats(data)

    @classmethod
    def build_prom_metrics(cls, *given: Any) -> Any:
        """Give metrics."""
        return NixlPromMetrics(*given)

    def shutdown(self) -> None:
        """End."""


class NixlPullConnector(NixlBaseConnector):
    """The one that reads."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Read each block where the request says; the last ones where there are more, as NIXL does."""
        for request_id, meta in self._connector_metadata.reqs_to_recv.items():
            remote = Wire.engines[meta.params["remote_engine_id"], self.connector_worker.tp_rank]
            for mine, theirs in zip(meta.local_block_ids, meta.params["remote_block_ids"], strict=True):
                if len(mine) > len(theirs):
                    raise AssertionError("the engine is gone")
                for target, source in zip(mine, theirs[len(theirs) - len(mine) :], strict=True):
                    for name, cache in self._kv.items():
                        cache.array[target] = remote[name].array[source]
            self.connector_worker._recving_transfers[request_id] = [1]
