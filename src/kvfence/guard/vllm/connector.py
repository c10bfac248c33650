"""What each of vLLM's calls to its connector does with the guard around it. No decision is taken here.

``Hooks`` stands before vLLM's own connector in the class that ``guarded`` makes, and knows nothing else of vLLM.
vLLM makes one of it in the scheduler's process and one in each worker's.
"""

from typing import Any

from kvfence.core.errors import SettingsError
from kvfence.guard.vllm.facts import facts_of, settings_of
from kvfence.guard.vllm.memory import BlockMemory
from kvfence.guard.vllm.orders import Orders, Report
from kvfence.guard.vllm.scheduler import SchedulerFence
from kvfence.guard.vllm.tally import logger
from kvfence.guard.vllm.worker import Results, WorkerFence

RIDES = "kvfence_orders"
"""The field of vLLM's step metadata that is the guard's."""

LATE = "num_notifications_after_expiry"
"""NIXL's count of reads that ended after their lease, sampled when the reader says that it is done."""


class Hooks:
    """One side's connector: the half of the guard that belongs there, around vLLM's own."""

    _kvfence_scheduler: SchedulerFence
    _kvfence_worker: WorkerFence

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        settings = settings_of(vllm_config)
        facts = facts_of(vllm_config, kv_cache_config, engine_version())
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        self._stock: Any = super()
        self._kvfence_caches = kv_cache_config
        self._kvfence_at_scheduler = role.name == "SCHEDULER"
        if self._kvfence_at_scheduler:
            self._kvfence_scheduler = SchedulerFence(settings, facts)
            words = (facts.role, settings.mode, settings.key.id, engine_version())
            logger.info("kvfence guard: %s, %s, key %s, vLLM %s", *words)
        else:
            whole = facts.whole_receives
            rank = int(self._kvfence_nixl.tp_rank)
            self._kvfence_digest = facts.digest
            self._kvfence_worker = WorkerFence(rank, enforces=settings.enforces, whole_receives=whole)

    @property
    def _kvfence_nixl(self) -> Any:
        """Give vLLM's own worker half."""
        return self.connector_worker  # type: ignore[attr-defined]

    # ---- in the scheduler's process ----

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Count every grant of vLLM's pool from here on."""
        self._kvfence_scheduler.meet_pool(gpu_block_pool)
        self._stock.bind_gpu_block_pool(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """Judge a hand-off before vLLM looks at it."""
        self._kvfence_scheduler.comes(request)
        self._stock.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """A refused request that is to fail waits for one token, which will be said not to have come."""
        if self._kvfence_scheduler.fails(request.request_id):
            return 1, True
        return self._stock.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is read for a refused request."""
        if not self._kvfence_scheduler.fails(request.request_id):
            self._stock.update_state_after_alloc(request, blocks, num_external_tokens)
        elif num_external_tokens:
            self._kvfence_scheduler.fail(request.request_id, blocks.get_unhashed_block_ids_all_groups())

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Check the step's tables, and let the worker's orders ride."""
        meta = self._stock.build_connector_meta(scheduler_output)
        setattr(meta, RIDES, self._kvfence_scheduler.order(scheduler_output, meta.reqs_to_recv))
        return meta

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Take what vLLM would send openly out of a hand-off until it can be sealed."""
        delay, params = self._stock.request_finished_all_groups(request, block_ids)
        self._kvfence_scheduler.ended(request.request_id, params)
        return delay, params

    def update_connector_output(self, connector_output: Any) -> None:
        """Hear what the worker's half found, before vLLM frees a block."""
        report = connector_output.kv_connector_worker_meta
        self._stock.update_connector_output(connector_output)
        finished = connector_output.finished_recving or ()
        failed = getattr(connector_output, "failed_recving", None) or ()
        self._kvfence_scheduler.outcome(report if isinstance(report, Report) else None, finished, failed)

    # ---- in a worker's process ----

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Know the memory behind the blocks."""
        caches = self._kvfence_caches
        memory = BlockMemory(kv_caches, caches.kv_cache_groups, int(caches.num_blocks))
        if memory.digest != self._kvfence_digest:
            raise SettingsError(
                [f"the scheduler compares blocks by {self._kvfence_digest}, this rank by {memory.digest}"]
            )
        self._kvfence_worker.meet_memory(memory)
        self._stock.register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Take the orders of this step, before its pass."""
        self._kvfence_worker.take(getattr(connector_metadata, RIDES, None) or Orders())
        self._stock.bind_connector_metadata(connector_metadata)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """After the pass: seal what it completed; tell vLLM of receives only once they are verified."""
        posted = self._kvfence_pass_ended()
        results = self._stock.get_transfer_results(finished_req_ids)
        kept = self._kvfence_worker.filter(Results(results.finished_recving, results.failed_recving), posted)
        results.finished_recving, results.failed_recving = kept.finished, kept.failed
        return results

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        """As above, in releases that cannot tell of a failed receive as a whole."""
        if self._kvfence_worker.whole_receives:
            return self._stock.get_finished(finished_req_ids)
        posted = self._kvfence_pass_ended()
        sent, received = self._stock.get_finished(finished_req_ids)
        self._kvfence_worker.note_bad_blocks(self._stock.get_block_ids_with_load_errors())
        return sent, self._kvfence_worker.filter(Results(set(received or ()), set()), posted).finished

    def _kvfence_pass_ended(self) -> list[str]:
        """Seal; give the receives that have reads under way."""
        self._kvfence_worker.pass_ended()
        return list(getattr(self._kvfence_nixl, "_recving_transfers", ()))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Name the blocks whose users fail."""
        found: set[int] = self._stock.get_block_ids_with_load_errors() | self._kvfence_worker.take_bad_blocks()
        return found

    def build_connector_worker_meta(self) -> Report | None:
        """Report to the scheduler's half."""
        return self._kvfence_worker.report()

    def shutdown(self) -> None:
        """Stop verifying, and end the trace."""
        if self._kvfence_at_scheduler:
            self._kvfence_scheduler.close()
        else:
            self._kvfence_worker.close()
        self._stock.shutdown()

    # ---- counts ----

    def get_kv_connector_stats(self) -> Any:
        """Let the guard's counts travel with NIXL's."""
        from kvfence.guard.vllm.stats import FenceStats

        stats = self._stock.get_kv_connector_stats()
        if self._kvfence_at_scheduler:
            counts = self._kvfence_scheduler.tally.take()
            return FenceStats.of(counts) if counts else None
        if stats is None:
            return None
        self._kvfence_worker.note_late(len(stats.data.get(LATE, ())))
        return FenceStats(data=stats.data)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Give counts as vLLM's other processes read them."""
        from kvfence.guard.vllm.stats import FenceStats

        return FenceStats(data=data) if data is not None else FenceStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *given: Any) -> Any:
        """Show the guard's counts beside NIXL's."""
        from kvfence.guard.vllm.facts import ROLES
        from kvfence.guard.vllm.stats import FenceMetrics

        role = ROLES.get(vllm_config.kv_transfer_config.kv_role, "both")
        return FenceMetrics(settings_of(vllm_config), role, vllm_config, *given)


def engine_version() -> str:
    """Give the release of the vLLM that is running."""
    import vllm  # type: ignore[import-not-found, unused-ignore]

    return str(vllm.__version__)


def stock_connector() -> Any:
    """Give vLLM's own connector."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import (  # type: ignore[import-not-found, unused-ignore]
        NixlConnector,
    )

    return NixlConnector


def guarded(stock: Any) -> Any:
    """Give a connector with the guard around it, under the name that vLLM knows."""

    class NixlConnector(Hooks, stock):  # type: ignore[misc, valid-type, unused-ignore]
        """vLLM's NIXL connector, guarded."""

    return NixlConnector
