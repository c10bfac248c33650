"""A package of the stand-in. vLLM's own name for one of its modules is one that this project does not use."""

import sys

from vllm.distributed.kv_transfer.kv_connector.v1 import root

sys.modules[f"{__name__}.base"] = base = root
