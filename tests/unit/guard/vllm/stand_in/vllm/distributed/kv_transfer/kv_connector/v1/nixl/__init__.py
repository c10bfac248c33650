"""The connector that reads blocks of another engine."""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

NixlConnector = NixlPullConnector
