"""What a step schedules."""

from typing import Any


class KVConnectorBlockState:
    """The tables of the requests that a step schedules."""

    def __init__(self, tables: dict[str, Any]) -> None:
        self._tables = tables

    def get_block_ids(self, req_id: str) -> Any:
        """Give one; None for a request that is not scheduled."""
        return self._tables.get(req_id)


class NewRequestData:
    """A request that is scheduled for the first time, or comes again."""

    num_computed_tokens: int


class CachedRequestData:
    """Requests that go on."""

    num_computed_tokens: list[int]
