"""The fence inside vLLM: a connector around its NIXL connector, for both roles of a prefill/decode pair.

vLLM loads it by ``"kv_connector": "NixlConnector", "kv_connector_module_path": "kvfence.guard.vllm"``. The class keeps
vLLM's name, since vLLM has special cases for it, and is made from the installed one when it is asked for. Read
``connector.py`` for what is hooked, ``scheduler.py`` and ``worker.py`` for what the guard does on either side.
"""

import os
from typing import Any

OFF = "off"


def __getattr__(name: str) -> Any:
    """Give the guarded connector; vLLM's own where ``KVFENCE_GUARD=off``, which is the whole of the way back."""
    if name != "NixlConnector":
        raise AttributeError(name)
    from kvfence.guard.vllm.connector import guarded, stock_connector

    stock = stock_connector()
    made = stock if os.environ.get("KVFENCE_GUARD") == OFF else guarded(stock)
    globals()[name] = made
    return made
