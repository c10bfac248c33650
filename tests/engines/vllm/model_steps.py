"""Two whole vLLM engines in one process, with the model: are honest hand-offs answered as prefill alone goes on?

    KVFENCE_GUARD_KEY=... python model_steps.py MODEL

Run by the engine's Python. vLLM keeps one connector a process; it is changed before each engine's step. Prints one JSON
document: how many of how many answers were alike, and what the guard counted.
"""

import json
import os
import sys
import time
from typing import Any

from steps import ASKS, free_ports

NUMBER, NEW, END_S = 6, 6, 600


def make(model: str, role: str, *, guard: bool) -> tuple[Any, Any]:
    """Make one engine, and take its connector."""
    import vllm.distributed.kv_transfer.kv_transfer_state as state
    from vllm import envs
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    envs.disable_envs_cache()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_ports(1)[0])
    transfer = KVTransferConfig(
        kv_connector="NixlConnector",
        kv_connector_module_path="kvfence.guard.vllm" if guard else None,
        kv_role={"prefill": "kv_producer", "decode": "kv_consumer"}[role],
        kv_buffer_device="cpu",
        kv_connector_extra_config={"num_threads": 0},
    )
    arguments = EngineArgs(
        model,
        dtype="float32",
        max_model_len=512,
        block_size=32,
        max_num_seqs=8,
        enforce_eager=True,
        num_gpu_blocks_override=64,
        kv_transfer_config=transfer,
    )
    state._KV_CONNECTOR_AGENT = None
    engine = LLMEngine.from_engine_args(arguments)
    return engine, state._KV_CONNECTOR_AGENT


class Both:
    """Both engines, stepped in turn."""

    def __init__(self, model: str, *, guard: bool) -> None:
        self.engines = {role: make(model, role, guard=guard) for role in ("prefill", "decode")}
        self.tokenizer = self.engines["prefill"][0].get_tokenizer()

    def run(self, role: str, name: str, tokens: list[int], new: int, params: dict[str, Any] | None) -> Any:
        """Run one request to its end."""
        return self.run_all(role, {name: (tokens, params)}, new)[name]

    def run_all(self, role: str, asked: dict[str, tuple[list[int], dict[str, Any] | None]], new: int) -> dict[str, Any]:
        """Run requests to their ends, all at once."""
        import vllm.distributed.kv_transfer.kv_transfer_state as state
        from vllm.sampling_params import SamplingParams

        for name, (tokens, params) in asked.items():
            extra = {"kv_transfer_params": params} if params else None
            sampling = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True, extra_args=extra)
            self.engines[role][0].add_request(name, {"prompt_token_ids": tokens}, sampling)
        ended: dict[str, Any] = {}
        deadline = time.monotonic() + END_S
        while len(ended) < len(asked):
            if time.monotonic() > deadline:
                raise TimeoutError(role)
            for engine, connector in self.engines.values():
                state._KV_CONNECTOR_AGENT = connector
                for output in engine.step():
                    if output.finished:
                        ended[output.request_id] = output
        return ended


def main(model: str) -> None:
    """Hand off some prompts, and compare."""
    both = Both(model, guard=os.environ.get("STEPS_GUARD", "1") == "1")
    same = []
    for number in range(NUMBER):
        text = f"File {number}. The vault code of tenant B is ZX-4471-QUARTZ. " + "Nobody may read this. " * number
        tokens = both.tokenizer.encode(text + "Question: what is the vault code of tenant B? Answer: it is")
        params = both.run("prefill", f"p{number}", tokens, 1, dict(ASKS)).kv_transfer_params
        answers = [
            both.run("decode", f"d{number}", tokens, NEW, json.loads(json.dumps(params))),
            both.run("prefill", f"a{number}", tokens, NEW, None),
        ]
        texts = [answer.outputs[0].text for answer in answers]
        same.append(texts[0] == texts[1])
    sys.stdout.write(json.dumps({"same": sum(same), "of": len(same)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
