"""The base of all connectors."""

from typing import Any


class KVConnectorBase_V1:
    """What a connector has of its own accord."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._connector_metadata: Any = None

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Nothing by itself."""

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Take what the scheduler's half says."""
        self._connector_metadata = connector_metadata

    def build_connector_worker_meta(self) -> Any:
        """Nothing by itself."""
        return None
