"""Parsers know formats, not fixtures: other numbers, thousands separators, ranks, versions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.evidence.records import document_of

pools = st.integers(min_value=1, max_value=10**9)
contexts = st.integers(min_value=1, max_value=4096).map(lambda count: count * 256)
ranks = st.integers(min_value=0, max_value=512)
plain = st.sampled_from(["{}", "{:,}"])


def read(text: str, *keys: str) -> tuple[object, ...]:
    """The values of some keys."""
    document = document_of(text)
    return tuple(document[key] for key in keys)


@settings(max_examples=60, deadline=None)
@given(pools, contexts, ranks, plain)
def test_sglang(pool: int, context: int, rank: int, style: str) -> None:
    """SGLang's scheduler line, in any rank and style of number."""
    text = (
        f"[2026-08-01 00:00:00 DP{rank} TP1 EP2] max_total_num_tokens={style.format(pool)}, chunked_prefill_size=8192, "
        f"max_running_requests=48, context_len={style.format(context)}, available_gpu_mem=9.99 GB"
    )
    assert read(text, "pool_tokens", "context_len", "dp_rank") == (pool, context, rank)


@settings(max_examples=60, deadline=None)
@given(pools, contexts, plain)
def test_vllm(pool: int, context: int, style: str) -> None:
    """vLLM's two lines, on any device."""
    text = (
        f"(EngineCore pid=1) INFO 07-25 00:00:00 [kv.py:2146] GPU KV cache size: {style.format(pool)} tokens\n"
        f"(EngineCore pid=1) INFO 07-25 00:00:00 [kv.py:2147] Maximum concurrency for {style.format(context)} "
        "tokens per request: 1.74x"
    )
    assert read(text, "pool_tokens", "context_len") == (pool, context)
    assert read(text.replace("GPU", "CPU"), "pool_tokens") == (pool,)


def test_vllm_takes_the_least_of_its_workers() -> None:
    """Workers print their own sizes; the engine works with the least; an earlier start's sizes are past."""
    start = "INFO 01-01 00:00:00 [core.py:109] Initializing a V1 LLM engine (v0.11.0) with config: model='m', x=1\n"
    line = "INFO 01-01 00:00:01 [kv_cache_utils.py:716] GPU KV cache size: {} tokens\n"
    text = start + line.format("10") + start + line.format("3,000") + line.format("4,000")
    assert read(text, "pool_tokens", "version") == (3000, "0.11.0")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**6), st.sampled_from([None, 8, 16, 32]))
def test_vllm_blocks(blocks: int, size: int | None) -> None:
    """Blocks times the stated block size, or the documented 16."""
    stated = (
        f"INFO 01-01 00:00:00 api_server.py:1] args: Namespace(model='m', block_size={size}, seed=0)\n" if size else ""
    )
    text = f"{stated}INFO 01-11 00:00:00 llm_engine.py:275] # GPU blocks: {blocks}, # CPU blocks: 512"
    assert read(text, "pool_tokens", "page_size") == (blocks * (size or 16), size or 16)


@settings(max_examples=40, deadline=None)
@given(st.lists(pools, min_size=1, max_size=3), st.sampled_from([16, 32, 64, 128]))
def test_tensorrt_llm(pools_: list[int], page: int) -> None:
    """The last allocation holds; one of nothing says nothing."""
    text = "".join(
        f"[TensorRT-LLM][INFO] Number of tokens per block: {page}.\n"
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.50 GiB for max tokens in paged KV cache ({pool}).\n"
        for pool in pools_
    )
    assert read(text, "pool_tokens", "page_size") == (pools_[-1], page)
    assert read(text.replace("1.50 GiB", "0.00 GiB"), "pool_tokens") == (None,)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**5), st.integers(1, 64))
def test_llama_cpp_unified(context: int, slots: int) -> None:
    """A unified cache promises its whole context to each slot: the pool is not multiplied."""
    text = (
        f"llama_context: n_seq_max     = {slots}\nllama_context: n_ctx         = {context}\n"
        f"llama_context: n_ctx_seq     = {context}\nllama_context: kv_unified    = true\n"
        f"llama_kv_cache: size =   12.00 MiB (  {context} cells,  24 layers,  {slots}/1 seqs), K (f16):    6.00 MiB\n"
        f"srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = {context}, kv_unified = 'true'\n"
    )
    assert read(text, "pool_tokens", "context_len", "slots") == (context, context, slots)


@settings(max_examples=30, deadline=None)
@given(pools, pools)
def test_ranks_are_never_summed(first: int, second: int) -> None:
    """Under DP attention each rank has its own pool; the source's pool is the smallest."""
    line = "[2026-08-01 00:00:00 DP{} TP0] max_total_num_tokens={}, chunked_prefill_size=1, context_len=1024, x=1\n"
    document = document_of(line.format(0, first) + line.format(1, second))
    assert document["pool_tokens"] == min(first, second)
    assert [part["pool_tokens"] for part in document["parts"]] == [first, second]
    assert [part["dp_rank"] for part in document["parts"]] == [0, 1]


def test_the_names_of_files_and_pods_say_nothing() -> None:
    """A role is never taken from a name."""
    line = "[2026-08-01 00:00:00 TP0] max_total_num_tokens=10, x=1, context_len=1024, y=1"
    for prefix in ("[pod/prefill-0/prefill] ", "prefill-1  | ", "prefill.1.x@host    | "):
        assert read(prefix + line, "role") == (None,)


def test_a_role_stated_twice_and_differently_is_unknown() -> None:
    """One text that says prefill and decode of one process states no role."""
    text = "[2026-01-01 00:00:00] server_args=ServerArgs(disaggregation_mode='prefill', page_size=1)\n"
    assert read(text + text.replace("prefill", "decode"), "role") == (None,)


def test_a_hybrid_block_size_counts_only_where_it_fits() -> None:
    """A block size that contradicts the token count is null; without blocks there is no pool."""
    form = 'vllm:cache_config_info{{block_size="{}",num_gpu_blocks="{}",kv_cache_size_tokens="{}"}} 1.0'
    assert read(form.format(16, 1000, 528000), "pool_tokens", "page_size") == (528000, None)
    assert read(form.format(16, 1000, 16000), "pool_tokens", "page_size") == (16000, 16)
    assert read(form.format(16, "None", "None"), "pool_tokens") == (None,)


def test_a_fork_is_called_a_fork() -> None:
    """A vendor's local version label makes the release undecidable; builds' own labels do not."""
    info = '{{"version": "{}", "max_req_input_len": 1018, "disaggregation_mode": "decode"}}'
    assert read(info.format("0.5.21+acme1"), "is_fork", "deferred_release") == (True, None)
    assert read(info.format("0.5.21+cu129"), "is_fork", "deferred_release") == (False, True)
    assert read(info.format("0.5.20"), "deferred_release") == (False,)
